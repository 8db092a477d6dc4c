"""Products of a few rows with weights by one Triton kernel, each of rows and a weight of its own.

To read a weight is what such a product takes; one after the other, each has to begin and to come to an end, which is as
long as the reading. Here all weights are read by programs that run at once, each with a block of one: what it makes of
the width's part is added up by whoever takes the product.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.kernel_call import call_kernel

_MOST_ROWS = 16  # of a block of a tensor core's product
_PART, _COLUMNS = 256, 128  # of a weight, that a program reads
_WARPS = 8


def has_kernel(xs: Sequence[Array], weights: Sequence[Any]) -> bool:
    """Whether products of such rows and weights are for the kernel."""
    if any(not isinstance(one, Array) or one.dtype not in (jnp.bfloat16, jnp.float16) for one in (*xs, *weights)):
        return False
    if any(
        x.shape[-1] != weight.shape[0] or x.shape[:-1] != xs[0].shape[:-1]
        for x, weight in zip(xs, weights, strict=True)
    ):
        return False
    is_few = all(x.size // x.shape[-1] <= _MOST_ROWS and x.shape[-1] % _PART == 0 for x in xs)
    return is_few and all((one.size // one.shape[0]) % _COLUMNS == 0 for one in weights)


def products_of_few(
    xs: tuple[Array, ...], weights: tuple[Array, ...], *, is_interpreted: bool = False
) -> tuple[Array, ...]:
    """x · weight of each pair, all with as many rows."""
    rows = xs[0].size // xs[0].shape[-1]
    flat = [(x.reshape(rows, -1), weight.reshape(weight.shape[0], -1)) for x, weight in zip(xs, weights, strict=True)]

    def kernel(given: Any, *made: Any) -> None:
        block, part = pl.program_id(1), pl.program_id(2)
        mine, columns = pl.ds(part * _PART, _PART), pl.ds(block * _COLUMNS, _COLUMNS)
        is_row = jax.lax.broadcasted_iota(jnp.int32, (_MOST_ROWS, 1), 0) < rows
        for number, ((x, weight), to) in enumerate(zip(given, made, strict=True)):

            @pl.when((pl.program_id(0) == number) & (block * _COLUMNS < weight.shape[1]) & (part * _PART < x.shape[1]))
            def _(x: Any = x, weight: Any = weight, to: Any = to) -> None:
                read = weight[mine, columns]
                values = triton.load(x.at[pl.ds(0, _MOST_ROWS), mine], mask=is_row, other=0)
                product = jnp.dot(values, read, preferred_element_type=jnp.float32)
                triton.store(to.at[part, pl.ds(0, _MOST_ROWS), columns], product, mask=is_row)

    grid = (
        len(flat),
        max(pl.cdiv(weight.shape[1], _COLUMNS) for _, weight in flat),
        max(x.shape[1] // _PART for x, _ in flat),
    )
    wanted = [jax.ShapeDtypeStruct((x.shape[1] // _PART, rows, weight.shape[1]), jnp.float32) for x, weight in flat]
    made = call_kernel(kernel, grid, flat, wanted, warps=_WARPS, name="products_of_few", is_interpreted=is_interpreted)
    each = zip(made, xs, weights, strict=True)
    return tuple(
        jnp.sum(one, axis=0).astype(x.dtype).reshape(*x.shape[:-1], *weight.shape[1:]) for one, x, weight in each
    )
