"""Products with weights, whose gradients are made in the order that costs least.

JAX's own rule makes a weight's gradient of the transposed output gradient, which is the wider of the two as often as
not; on a CPU that copy, with the activation's derivative fused into it, takes longer than the product.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from ponente.ops.fp8 import Fp8Weight, fp8_product
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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, contracted: int) -> Array:
    axes = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    return lax.dot_general(x, weight, (axes, ((), ())))


def _forward(x: Array, weight: Array, contracted: int) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, weight, contracted), (x, weight)


def _backward(contracted: int, kept: tuple[Array, Array], by_y: Array) -> tuple[Array, Array]:
    x, weight = kept
    made = weight.ndim - contracted  # axes that the product adds
    last = tuple(range(by_y.ndim - made, by_y.ndim)), tuple(range(contracted, weight.ndim))
    by_x = lax.dot_general(by_y, weight, (last, ((), ())))
    rows = tuple(range(x.ndim - contracted))
    if math.prod(weight.shape[:contracted]) <= math.prod(weight.shape[contracted:]):
        return by_x, lax.dot_general(x, by_y, ((rows, rows), ((), ())))
    turned = lax.dot_general(by_y, x, ((rows, rows), ((), ())))
    return by_x, jnp.moveaxis(turned, tuple(range(made)), tuple(range(contracted, weight.ndim)))


_product.defvjp(_forward, _backward)
