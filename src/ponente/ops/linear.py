"""Products with weights, whose gradients are made in the order that costs least.

JAX's own rule makes a weight's gradient of the transposed output gradient, which is the wider of the two as often as
not; on a CPU that copy, with the activation's derivative fused into it, takes longer than the product.
"""

import math
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from ponente.ops.fp8 import Fp8Weight, fp8_product
from ponente.ops.gpu import has_triton
from ponente.ops.kept import PRODUCT


def linear(x: Array, weight: Array | Fp8Weight, contracted: int = 1) -> Array:
    """x · weight over the last axes of x, which are the first ones of the weight.

    Example: `linear(mixed_BSNH, w_out_NHD, 2)` has the axes B, S, D.
    """
    if isinstance(weight, Fp8Weight):
        product = fp8_product(x, weight.values, contracted)
    else:
        product = _product(x, weight, contracted)
    named: Array = checkpoint_name(product, PRODUCT)
    return named


def linears(x: Array, *weights: Array | Fp8Weight) -> tuple[Array, ...]:
    """x · weight for each of the weights; on a GPU one product makes the gradient by x, instead of a sum of several."""
    plain = [weight for weight in weights if not isinstance(weight, Fp8Weight)]
    if len(plain) < len(weights) or not has_triton():
        return tuple(linear(x, weight) for weight in weights)
    return tuple(checkpoint_name(product, PRODUCT) for product in _products(x, *plain))


def linear_each(xs: tuple[Array, ...], weights: tuple[Any, ...]) -> tuple[Array, ...]:
    """x · weight of each pair; one kernel makes all of them where rows are few and not the same, as in decoding."""
    if has_triton() and any(x is not xs[0] for x in xs):
        from ponente.ops.linear_kernel import has_kernel

        if has_kernel(xs, weights):
            return tuple(checkpoint_name(product, PRODUCT) for product in _few_products(xs, weights))
    return tuple(linear(x, weight) for x, weight in zip(xs, weights, strict=True))


@jax.custom_vjp
def _few_products(xs: tuple[Array, ...], weights: tuple[Array, ...]) -> tuple[Array, ...]:
    from ponente.ops.linear_kernel import products_of_few

    return products_of_few(xs, weights)


def _few_forward(xs: tuple[Array, ...], weights: tuple[Array, ...]) -> tuple[Any, Any]:
    return _few_products(xs, weights), (xs, weights)


def _few_backward(kept: Any, by: tuple[Array, ...]) -> Any:
    each = [_backward(1, (x, weight), one) for x, weight, one in zip(*kept, by, strict=True)]
    return tuple(by_x for by_x, _ in each), tuple(by_weight for _, by_weight in each)


_few_products.defvjp(_few_forward, _few_backward)


def scaled(weight: Any, norm: Array | None) -> Any:
    """A weight that also multiplies each of its inputs, as the weight of a norm before it would.

    Args:
        norm: has the first axes of the weight: the inputs', or those of layers and inputs where layers are stacked.
    """
    if norm is None:
        return weight
    values = weight.values if isinstance(weight, Fp8Weight) else weight
    factor = norm.astype(jnp.float32)  # whose gradient is a sum of many
    factor = factor.reshape(*factor.shape, *[1] * (values.ndim - factor.ndim))
    made: Array = (values.astype(jnp.float32) * factor).astype(values.dtype)
    return Fp8Weight(made) if isinstance(weight, Fp8Weight) else made


@jax.custom_vjp
def _products(x: Array, *weights: Array) -> tuple[Array, ...]:
    return tuple(_product(x, weight, 1) for weight in weights)


def _products_forward(x: Array, *weights: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    return _products(x, *weights), (x, *weights)


def _products_backward(kept: tuple[Array, ...], by_products: tuple[Array, ...]) -> tuple[Array, ...]:
    x, *weights = kept
    by_y = jnp.concatenate([by.reshape(*x.shape[:-1], -1) for by in by_products], axis=-1)
    joined = jnp.concatenate([weight.reshape(x.shape[-1], -1) for weight in weights], axis=-1)
    by_x, by_joined = _backward(1, (x, joined), by_y)
    ends = list(accumulate(math.prod(weight.shape[1:]) for weight in weights))
    parts = jnp.split(by_joined, ends[:-1], axis=-1)
    return by_x, *(part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True))


_products.defvjp(_products_forward, _products_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, contracted: int) -> Array:
    axes = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    return lax.dot_general(x, weight, (axes, ((), ())))


def _forward(x: Array, weight: Array, contracted: int) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, weight, contracted), (x, weight)


def _backward(contracted: int, kept: tuple[Array, Array], by_y: Array) -> tuple[Array, Array]:
    x, weight = kept
    return input_gradient(weight, by_y, contracted), weight_gradient(x, weight, by_y, contracted)


def input_gradient(weight: Array, by_y: Array, contracted: int = 1) -> Array:
    """The gradient by x of x · weight."""
    made = weight.ndim - contracted  # axes that the product adds
    last = tuple(range(by_y.ndim - made, by_y.ndim)), tuple(range(contracted, weight.ndim))
    return lax.dot_general(by_y, weight, (last, ((), ())))


def weight_gradient(x: Array, weight: Array, by_y: Array, contracted: int = 1) -> Array:
    """The gradient by the weight of x · weight."""
    made, rows = weight.ndim - contracted, tuple(range(x.ndim - contracted))
    if math.prod(weight.shape[:contracted]) <= math.prod(weight.shape[contracted:]):
        return lax.dot_general(x, by_y, ((rows, rows), ((), ())))
    turned = lax.dot_general(by_y, x, ((rows, rows), ((), ())))
    return jnp.moveaxis(turned, tuple(range(made)), tuple(range(contracted, weight.ndim)))


_product.defvjp(_forward, _backward)
