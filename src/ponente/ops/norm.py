"""Normalisation over the last axis, computed in float32 whatever comes in, and given back in the type that came in."""

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gpu import has_triton


def rms_norm(x: Array, weight: Array | None, epsilon: float) -> Array:
    """x divided by its root mean square, times the weight where there is one."""
    return _affine(x.astype(jnp.float32) * rms_scale(x, epsilon), weight, None).astype(x.dtype)


def rms_scale(x: Array, epsilon: float) -> Array:
    """What each row is multiplied by, to be divided by its root mean square."""
    exact = x.astype(jnp.float32)
    return jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + epsilon)


class Term(NamedTuple):
    """A part `unit * weight` of an array, of which nobody else makes the gradient by the weight."""

    unit: Array
    weight: Array


def rms_norm_beside(x: Array, weight: Array | None, epsilon: float, term: Term | None = None) -> tuple[Array, Array]:
    """`rms_norm`, and x itself for what goes past it, so that on a GPU one kernel makes the gradient of both.

    Args:
        term: of x; that kernel, which has the gradient by x at hand, makes the one by the term's weight too.
    """
    if weight is not None and has_triton():
        return _beside(x, weight, term, epsilon)
    x = x if term is None else with_term(x, term)
    return rms_norm(x, weight, epsilon), x


@jax.custom_vjp
def with_term(x: Array, term: Term) -> Array:
    """x, which has that term: gives the term's weight its gradient, where no kernel does."""
    return x


def _by_term(term: Term, by: Array) -> Term:
    product = by.astype(jnp.float32) * term.unit.astype(jnp.float32)
    by_weight = jnp.sum(product, axis=tuple(range(product.ndim - 1)))
    return Term(jnp.zeros_like(term.unit), by_weight.astype(term.weight.dtype))


with_term.defvjp(lambda x, term: (x, term), lambda term, by: (by, _by_term(term, by)))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _beside(x: Array, weight: Array, term: Term | None, epsilon: float) -> tuple[Array, Array]:
    return rms_norm(x, weight, epsilon), x


def _beside_forward(x: Array, weight: Array, term: Term | None, epsilon: float) -> tuple[Any, Any]:
    return _beside(x, weight, term, epsilon), (x, weight, term)


def _beside_backward(
    epsilon: float, kept: tuple[Array, Array, Term | None], by: tuple[Array, Array]
) -> tuple[Array, Array, Term | None]:
    (x, weight, term), (by_normed, by_x) = kept, by
    return gradients_beside(x, weight, (by_normed,), by_x, epsilon, term)


_beside.defvjp(_beside_forward, _beside_backward)


def gradients_beside(
    x: Array, weight: Array, by_normed: tuple[Array, ...], by_x: Array, epsilon: float, term: Term | None = None
) -> tuple[Array, Array, Term | None]:
    """The gradients of a norm by x, to which the one that came past the norm is added, by the weight, and by the term.

    Args:
        by_normed: of each who took what was normed.
    """
    from ponente.ops.norm_kernel import has_kernel, rms_norm_gradients

    if has_triton() and has_kernel(x):
        return rms_norm_gradients(x, weight, by_normed, by_x, epsilon, term)
    _, pull = jax.vjp(partial(rms_norm, epsilon=epsilon), x, weight)
    new_by_x, by_weight = pull(reduce(jnp.add, by_normed))
    new_by_x = new_by_x + by_x
    return new_by_x, by_weight, None if term is None else _by_term(term, new_by_x)


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
