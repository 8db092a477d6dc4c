"""Rows of a table by their numbers, with a gradient that is summed in float32.

JAX's own rule adds in the table's type. In bfloat16 that loses most of the sum for frequent ids, and on a GPU, which
has no atomic addition for it, takes much longer (on an H200 16 ms instead of 1, for 32,768 ids of 128,256).
"""

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.mesh import Tensor


def lookup_split(table_VD: Array, ids: Array, tensor: Tensor) -> Array:
    """The same where each device has some rows of the table: it looks up its own, and others' are zeros in the sum."""
    if tensor.axis is None:
        return lookup(table_VD, ids)
    rows = table_VD.shape[0]
    place = ids - tensor.first(rows)
    is_here = (place >= 0) & (place < rows)
    return tensor.leave(jnp.where(is_here[..., None], lookup(table_VD, jnp.clip(place, 0, rows - 1)), 0))


@jax.custom_vjp
def lookup(table_VD: Array, ids: Array) -> Array:
    """The rows of the table that ids name; with one more axis, D, than ids."""
    return table_VD[ids]


def _forward(table_VD: Array, ids: Array) -> tuple[Array, tuple[Array, Array]]:
    return lookup(table_VD, ids), (table_VD, ids)  # of the table only shape and type are used, so nothing is kept


def _backward(kept: tuple[Array, Array], by_rows: Array) -> tuple[Array, None]:
    table_VD, ids = kept
    sums_VD = jnp.zeros(table_VD.shape, jnp.float32).at[ids].add(by_rows.astype(jnp.float32))
    return sums_VD.astype(table_VD.dtype), None


lookup.defvjp(_forward, _backward)
