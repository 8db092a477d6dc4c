"""Products in 8-bit floating point, with sums in float32: 1 + 4 + 3 bits for values, 1 + 5 + 2 for gradients.

Each array is scaled as a whole by a power of two, which brings its largest number near the largest of its type. It is
found anew for every product, so that there is no history to keep, to save, or to be wrong after a jump. What is NaN or
infinite gives NaN.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

_VALUE, _GRADIENT = jnp.float8_e4m3fn, jnp.float8_e5m2
_LARGEST = {_VALUE: 448.0, _GRADIENT: 57344.0}
_LEAST = 2.0**-100  # of the largest number: zeros stay zeros
_EXPONENT = 0x7F800000  # the bits of a float32 that say which power of two it is
# A GPU may add up in fewer bits than float32 where only "default" is asked for, which is faster, and harms gradients.
_ADD_FAST, _ADD_EXACTLY = lax.Precision.DEFAULT, lax.Precision.HIGHEST


class Fp8Weight(eqx.Module):
    """A weight with which `linear` multiplies in 8 bits."""

    values: Array


class _Scaled(eqx.Module):
    """An array in 8 bits, and what a 1 in it stands for."""

    numbers: Array
    unit: Array

    @classmethod
    def of(cls, x: Array, dtype: Any) -> "_Scaled":
        largest = jnp.maximum(jnp.abs(x).max().astype(jnp.float32), _LEAST)
        room = lax.bitcast_convert_type(_LARGEST[dtype] / largest, jnp.int32)
        scale = lax.bitcast_convert_type(room & _EXPONENT, jnp.float32)  # rounded down to a power of two
        return cls((x * scale.astype(x.dtype)).astype(dtype), 1 / scale)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def fp8_product(x: Array, weight: Array, contracted: int) -> Array:
    """x · weight over the last axes of x, which are the first ones of the weight."""
    return _forward(x, weight, contracted)[0]


def _forward(x: Array, weight: Array, contracted: int) -> tuple[Array, tuple[_Scaled, _Scaled]]:
    x_8, weight_8 = _Scaled.of(x, _VALUE), _Scaled.of(weight, _VALUE)
    last, first = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    return _dot(x_8, weight_8, (last, first), x.dtype, _ADD_FAST), (x_8, weight_8)


def _backward(contracted: int, kept: tuple[_Scaled, _Scaled], by_y: Array) -> tuple[Array, Array]:
    x, weight = kept
    by_y_8 = _Scaled.of(by_y, _GRADIENT)
    made = tuple(range(contracted, weight.numbers.ndim))  # axes that the product adds
    last = tuple(range(by_y.ndim - len(made), by_y.ndim))
    rows = tuple(range(x.numbers.ndim - contracted))
    by_x = _dot(by_y_8, weight, (last, made), by_y.dtype, _ADD_EXACTLY)
    return by_x, _dot(x, by_y_8, (rows, rows), by_y.dtype, _ADD_EXACTLY)


fp8_product.defvjp(_forward, _backward)


def _dot(
    one: _Scaled, other: _Scaled, axes: tuple[tuple[int, ...], tuple[int, ...]], dtype: Any, adding: lax.Precision
) -> Array:
    product = lax.dot_general(
        one.numbers, other.numbers, (axes, ((), ())), precision=adding, preferred_element_type=dtype
    )
    return product * (one.unit * other.unit).astype(dtype)
