"""Normalisation over the last axis, computed in float32 whatever comes in, and given back in the type that came in."""

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gpu import has_triton


def rms_norm(x: Array, weight: Array | None, epsilon: float, bias: Array | None = None) -> Array:
    """x divided by its root mean square, times the weight where there is one."""
    exact = x.astype(jnp.float32)
    exact = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + epsilon)
    return _affine(exact, weight, bias).astype(x.dtype)


def rms_norm_beside(x: Array, weight: Array | None, epsilon: float) -> tuple[Array, Array]:
    """`rms_norm`, and x itself for what goes past it, so that on a GPU one kernel makes the gradient of both."""
    (normed,), x = _normed_beside(x, weight, epsilon, 1)
    return normed, x


def rms_norm_twice_beside(x: Array, weight: Array | None, epsilon: float) -> tuple[Array, Array, Array]:
    """The same for two who take what is normed: that kernel adds their gradients too."""
    (one, other), x = _normed_beside(x, weight, epsilon, 2)
    return one, other, x


def _normed_beside(x: Array, weight: Array | None, epsilon: float, users: int) -> tuple[tuple[Array, ...], Array]:
    if weight is not None and has_triton():
        return _beside(x, weight, epsilon, users)
    return (rms_norm(x, weight, epsilon),) * users, x


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _beside(x: Array, weight: Array, epsilon: float, users: int) -> tuple[tuple[Array, ...], Array]:
    return (rms_norm(x, weight, epsilon),) * users, x


def _beside_forward(x: Array, weight: Array, epsilon: float, users: int) -> tuple[Any, tuple[Array, Array]]:
    return _beside(x, weight, epsilon, users), (x, weight)


def _beside_backward(
    epsilon: float, users: int, kept: tuple[Array, Array], by: tuple[tuple[Array, ...], Array]
) -> tuple[Array, Array]:
    from ponente.ops.norm_kernel import has_kernel, rms_norm_gradients

    if has_kernel(kept[0]):
        return rms_norm_gradients(*kept, *by, epsilon)
    _, pull = jax.vjp(partial(rms_norm, epsilon=epsilon), *kept)
    by_x, by_weight = pull(reduce(jnp.add, by[0]))
    return by_x + by[1], by_weight


_beside.defvjp(_beside_forward, _beside_backward)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, epsilon: float) -> Array:
    """x with mean 0 and variance 1, times the weight, plus the bias, where there are such."""
    exact = x.astype(jnp.float32)
    exact = exact - jnp.mean(exact, axis=-1, keepdims=True)
    exact = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + epsilon)
    return _affine(exact, weight, bias).astype(x.dtype)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * weight.astype(jnp.float32)
    return x if bias is None else x + bias.astype(jnp.float32)
