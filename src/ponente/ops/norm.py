"""Normalisation over the last axis, computed in float32 whatever comes in, and given back in the type that came in."""

import jax
import jax.numpy as jnp
from jax import Array


def rms_norm(x: Array, weight: Array | None, epsilon: float, bias: Array | None = None) -> Array:
    """x divided by its root mean square, times the weight where there is one."""
    exact = x.astype(jnp.float32)
    exact = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + epsilon)
    return _affine(exact, weight, bias).astype(x.dtype)


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
