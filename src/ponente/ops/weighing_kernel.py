"""Weights of states by two Triton kernels, for a few tokens: the norm with the first product, and the second product.

XLA makes seven of them, each of which takes longer to begin than to run.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.gated import Activation
from ponente.ops.weighing import Network, gelu

_MOST_ROWS = 64  # more have enough to read for products of XLA's own
_WIDEST = 8192
_COLUMNS = 16  # of a weight, that a program multiplies with: the fewest that are read whole
_PART, _LEAST_PART = 512, 32  # numbers of a row, that meet as many rows of a weight at once
_MOST_INNER = 1024  # which are held at once
_WARPS = 8


def has_kernel(x: Array, network: Network) -> bool:
    """Whether states and networks of these shapes are for the kernels."""
    is_narrow = x.shape[-1] <= _WIDEST and network.w_in_DI.shape[1] <= _MOST_INNER
    return is_narrow and x.size // x.shape[-1] <= _MOST_ROWS


def weigh_few(
    x_BSD: Array, network: Network, activation: Activation, epsilon: float, *, is_interpreted: bool = False
) -> tuple[Array, Array]:
    """The last state as it is mixed, and the weights, in float32."""
    x = x_BSD.reshape(-1, x_BSD.shape[-1])
    w_out = network.w_out_ICM
    last, inner = _inner(x, network, activation, epsilon, is_interpreted=is_interpreted)
    static = None if network.static_CM is None else network.static_CM.reshape(-1)
    weights = _outer(inner, w_out.reshape(w_out.shape[0], -1), static, is_interpreted=is_interpreted)
    mixed_last = x_BSD if last is None else last.reshape(x_BSD.shape)
    return mixed_last, weights.reshape(*x_BSD.shape[:-1], *w_out.shape[1:])


def _inner(
    x: Array, network: Network, activation: Activation, epsilon: float, *, is_interpreted: bool
) -> tuple[Array | None, Array]:
    """The normed rows, where there is a norm with a weight, and what the network is inside."""
    (rows, width), inner = x.shape, network.w_in_DI.shape[1]
    even = math.gcd(width, _PART)
    part = even if even >= _LEAST_PART else pl.next_power_of_2(width)  # one, for others may not pass the row's end
    starts = range(0, width, part)
    active = _gelu if activation is gelu else activation

    def kernel(given: Any, made: Any) -> None:
        (x, w_in, norm), (inner_to, last_to) = given, made
        row, first = pl.program_id(0), pl.program_id(1) * _COLUMNS
        column = lax.broadcasted_iota(jnp.int32, (1, _COLUMNS), 1) + first
        place = [lax.broadcasted_iota(jnp.int32, (part, 1), 0) + start for start in starts]

        def read_part(number: int, *before: Any, of: Any) -> Array:
            at = of.at[(*before, pl.ds(starts[number], part))]
            return triton.load(at, mask=_one(place[number]) < width, other=0).astype(jnp.float32)

        parts = [read_part(number, row, of=x) for number in range(len(starts))]
        squares = sum((jnp.sum(values * values) for values in parts), jnp.float32(0))
        scale = lax.rsqrt(squares / width + epsilon)
        if norm is not None:
            parts = [
                (values * scale * read_part(number, of=norm)).astype(x.dtype).astype(jnp.float32)
                for number, values in enumerate(parts)
            ]

            @pl.when(pl.program_id(1) == 0)
            def _() -> None:
                for number, values in enumerate(parts):
                    to = last_to.at[row, pl.ds(starts[number], part)]
                    triton.store(to, values.astype(x.dtype), mask=_one(place[number]) < width)

        total = jnp.zeros((part, _COLUMNS), jnp.float32)
        for number, values in enumerate(parts):
            at = w_in.at[pl.ds(starts[number], part), pl.ds(first, _COLUMNS)]
            read = triton.load(at, mask=(place[number] < width) & (column < inner), other=0)
            total = total + values[:, None] * read.astype(jnp.float32)
        product = jnp.sum(total, axis=0).astype(x.dtype).astype(jnp.float32)
        made_here = active(product if norm is not None else product * scale).astype(x.dtype)
        triton.store(inner_to.at[row, pl.ds(first, _COLUMNS)], made_here, mask=_one(column) < inner)

    like = jax.ShapeDtypeStruct((rows, inner), x.dtype)
    wanted = like, None if network.norm_D is None else jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = rows, pl.cdiv(inner, _COLUMNS)
    given = x, network.w_in_DI, network.norm_D
    made, last = _call(kernel, grid, given, wanted, "weighed_inside", is_interpreted=is_interpreted)
    return last, made


def _outer(inner: Array, w_out: Array, static: Array | None, *, is_interpreted: bool) -> Array:
    """The weights, with the part that is the same for all tokens."""
    (rows, width), count = inner.shape, w_out.shape[1]
    block = pl.next_power_of_2(width)

    def kernel(given: Any, made: Any) -> None:
        (inner, w_out, static), (weights,) = given, made
        row, first = pl.program_id(0), pl.program_id(1) * _COLUMNS
        place = lax.broadcasted_iota(jnp.int32, (block, 1), 0)
        column = lax.broadcasted_iota(jnp.int32, (1, _COLUMNS), 1) + first
        is_column, at = _one(column) < count, pl.ds(first, _COLUMNS)
        values = triton.load(inner.at[row, pl.ds(0, block)], mask=_one(place) < width, other=0)
        read = triton.load(w_out.at[pl.ds(0, block), at], mask=(place < width) & (column < count), other=0)
        total = jnp.sum(values.astype(jnp.float32)[:, None] * read.astype(jnp.float32), axis=0)
        if static is not None:
            total = total + triton.load(static.at[at], mask=is_column, other=0).astype(jnp.float32)
        triton.store(weights.at[row, at], total, mask=is_column)

    wanted = (jax.ShapeDtypeStruct((rows, count), jnp.float32),)
    grid = rows, pl.cdiv(count, _COLUMNS)
    made: tuple[Array] = _call(kernel, grid, (inner, w_out, static), wanted, "weighed", is_interpreted=is_interpreted)
    return made[0]


def _gelu(x: Array) -> Array:
    """Triton by way of JAX has no error function: 7.1.26 of Abramowitz and Stegun, within 1.5e-7."""
    z = jnp.abs(x) * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * jnp.exp(-z * z)  # of the normal distribution, beyond |x|
    return x * jnp.where(x < 0, tail, 1 - tail)


def _one(index: Array) -> Array:
    """An index along one axis of two, as one along the only axis."""
    return index.reshape(math.prod(index.shape))


def _call(kernel: Any, grid: tuple[int, ...], given: Any, wanted: Any, name: str, *, is_interpreted: bool) -> Any:
    count = len(wanted)
    return pl.pallas_call(
        lambda given, *made: kernel(given, made[:count]),
        grid=grid,
        in_specs=[jax.tree.map(lambda _: pl.BlockSpec(), given)],
        out_specs=jax.tree.map(lambda _: pl.BlockSpec(), wanted),
        out_shape=wanted,
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=is_interpreted,
        name=name,
    )(given)
