"""The gradients of a root-mean-square norm by a Triton kernel: one pass over the rows.

XLA makes more of them: for the sum of each row, for the gradient, and for the weight's, which is a sum of columns.
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.gpu import MOST_NUMBERS
from ponente.ops.norm import Term

_ROWS, _WARPS = 32, 4  # rows of a program, which adds up the weight's gradient over them
_WIDEST = 8192  # numbers of a row, all of which are held at once


def has_kernel(x: Array) -> bool:
    """Whether arrays of this shape are for the kernel."""
    return x.shape[-1] <= _WIDEST and x.size <= MOST_NUMBERS and _rows_of(x) >= 4


def rms_norm_gradients(
    x: Array,
    weight: Array,
    by_normed: tuple[Array, ...],
    by_x: Array,
    epsilon: float,
    term: Term | None = None,
    *,
    is_interpreted: bool = False,
) -> tuple[Array, Array, Term | None]:
    """The gradients by x, to which the one that came past the norm is added, by the weight, and by a term of x.

    Args:
        by_normed: of each who took what was normed.
    """
    width, rows = x.shape[-1], _rows_of(x)
    block = pl.next_power_of_2(width)
    count = x.size // width // rows
    users, terms = len(by_normed), () if term is None else (term.unit,)

    def kernel(x: Any, weight: Any, by_x: Any, *others: Any) -> None:
        """Rows one after the other."""
        by_normed, units = others[:users], others[users : users + len(terms)]
        new_by_x, *by_weights = others[users + len(terms) :]
        first, columns = pl.program_id(0) * rows, jnp.arange(block)
        is_there = columns < width
        factor = triton.load(weight.at[pl.ds(0, block)], mask=is_there, other=0).astype(jnp.float32)

        def row(number: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
            def read(array: Any) -> Array:
                place = array.at[first + number, pl.ds(0, block)]
                return triton.load(place, mask=is_there, other=0).astype(jnp.float32)

            values, by, past = read(x), reduce(jnp.add, map(read, by_normed)), read(by_x)
            scale = lax.rsqrt(jnp.sum(values * values) / width + epsilon)
            unit = values * scale
            weighted = by * factor
            made = scale * (weighted - unit * (jnp.sum(weighted * unit) / width)) + past
            triton.store(new_by_x.at[first + number, pl.ds(0, block)], made.astype(new_by_x.dtype), mask=is_there)
            return tuple(map(jnp.add, totals, (by * unit, *(made * read(one) for one in units))))

        totals = lax.fori_loop(0, rows, row, (jnp.zeros(block, jnp.float32),) * len(by_weights))
        for by_weight, total in zip(by_weights, totals, strict=True):
            triton.store(by_weight.at[pl.program_id(0), pl.ds(0, block)], total, mask=is_there)

    shape = (x.size // width, width)
    sums = jax.ShapeDtypeStruct((count, width), jnp.float32)
    by_x, *by_weights = pl.pallas_call(
        kernel,
        grid=(count,),
        in_specs=[pl.BlockSpec()] * (3 + users + len(terms)),
        out_specs=[pl.BlockSpec()] * (2 + len(terms)),
        out_shape=[jax.ShapeDtypeStruct(shape, x.dtype), sums, *(sums for _ in terms)],
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=is_interpreted,
        name="rms_norm_gradients",
    )(x.reshape(shape), weight, by_x.reshape(shape), *(one.reshape(shape) for one in (*by_normed, *terms)))
    by_weight, *by_terms = (one.sum(axis=0) for one in by_weights)
    by_term = None if term is None else Term(jnp.zeros_like(term.unit), by_terms[0].astype(term.weight.dtype))
    return by_x.reshape(x.shape), by_weight.astype(weight.dtype), by_term


def _rows_of(x: Array) -> int:
    """Rows of one program."""
    return math.gcd(x.size // x.shape[-1], _ROWS)
