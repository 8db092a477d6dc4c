"""Products of a few rows with weights by one Triton kernel, each of rows and a weight of its own.

To read a weight is what such a product takes; one after the other, each has to begin and to come to an end, which is as
long as the reading. Here all weights are read by programs that run at once, each with some columns of one.
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
_COLUMNS = 64  # of a weight, that a program multiplies with
_PART, _STAGES = 128, 6  # rows of a weight that are read at once, and how many such parts are on their way
_WARPS = 4


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
        block = pl.program_id(1)
        columns, every = pl.ds(block * _COLUMNS, _COLUMNS), pl.ds(0, _MOST_ROWS)
        is_row = jax.lax.broadcasted_iota(jnp.int32, (_MOST_ROWS, 1), 0) < rows
        for number, ((x, weight), to) in enumerate(zip(given, made, strict=True)):

            @pl.when((pl.program_id(0) == number) & (block * _COLUMNS < weight.shape[1]))
            def _(x: Any = x, weight: Any = weight, to: Any = to) -> None:
                def plus_part(part: Any, total: Array) -> Array:
                    mine = pl.ds(part * _PART, _PART)
                    values = triton.load(x.at[every, mine], mask=is_row, other=0)
                    return total + jnp.dot(values, weight[mine, columns], preferred_element_type=jnp.float32)

                zeros = jnp.zeros((_MOST_ROWS, _COLUMNS), jnp.float32)
                product = jax.lax.fori_loop(0, x.shape[1] // _PART, plus_part, zeros)
                triton.store(to.at[every, columns], product.astype(to.dtype), mask=is_row)

    grid = len(flat), max(pl.cdiv(weight.shape[1], _COLUMNS) for _, weight in flat)
    wanted = [jax.ShapeDtypeStruct((rows, weight.shape[1]), x.dtype) for x, weight in flat]
    made = call_kernel(
        kernel,
        grid,
        flat,
        wanted,
        warps=_WARPS,
        stages=_STAGES,
        name="products_of_few",
        is_interpreted=is_interpreted,
    )
    return tuple(
        one.reshape(*x.shape[:-1], *weight.shape[1:]) for one, x, weight in zip(made, xs, weights, strict=True)
    )
