"""Weights of states by Triton kernels, for a few tokens: the norm with the first product, and what is behind it.

XLA makes seven kernels of them, each of which takes longer to begin than to run. Here the first product is one, of many
programs, each with a part of the state's width; what is behind it is computed where the weights are used, by the kernel
that mixes (`mixing_kernel.py`).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.gated import Activation
from ponente.ops.kernel_call import call_kernel
from ponente.ops.rows import lanes
from ponente.ops.weighing import Network, gelu

_MOST_ROWS = 64  # more have enough to read for products of XLA's own
_MOST_INNER = 512
_MOST_HELD = 256 * 32  # of the second weight, which is held at once, for each warp: each has 256 numbers of a row
_PART = 64  # numbers of a row, that meet as many rows of a weight
_COLUMNS = 128  # of a weight, that a program multiplies with
_WARPS = 4


def has_kernel(x: Array, network: Network) -> bool:
    """Whether states and networks of these shapes are for the kernels."""
    width, (inner, ways, states) = x.shape[-1], network.w_out_ICM.shape
    held = pl.next_power_of_2(inner) * lanes(ways * states)
    is_narrow = inner <= _MOST_INNER and held <= _MOST_HELD * max(1, width // 256)
    return is_narrow and x.size // x.shape[-1] <= _MOST_ROWS


class Inside(NamedTuple):
    """What a network's weights are made of, for each row: the first product in parts, and the rest of the network."""

    parts_RPI: Any  # float32
    w_out: Any  # [inner width, ways * states]
    static: Any  # [ways * states]


def weigh_inside(
    x_BSD: Array, network: Network, epsilon: float, *, is_interpreted: bool = False
) -> tuple[Array, Inside]:
    """The last state as it is mixed, and the first product."""
    x = x_BSD.reshape(-1, x_BSD.shape[-1])
    (rows, width), inner = x.shape, network.w_in_DI.shape[1]
    whole = pl.next_power_of_2(width)

    def kernel(given: Any, made: Any) -> None:
        (x, w_in, norm), (parts, last) = given, made
        row, part = pl.program_id(0), pl.program_id(1)
        mine, columns = pl.ds(part * _PART, _PART), pl.ds(pl.program_id(2) * _COLUMNS, _COLUMNS)
        is_mine = _places(_PART) + part * _PART < width
        is_column = _places(_COLUMNS) + pl.program_id(2) * _COLUMNS < inner
        read = triton.load(w_in.at[mine, columns], mask=is_mine[:, None] & is_column[None, :], other=0)
        values = triton.load(x.at[row, mine], mask=is_mine, other=0).astype(jnp.float32)
        every = triton.load(x.at[row, pl.ds(0, whole)], mask=_places(whole) < width, other=0).astype(jnp.float32)
        if norm is not None:
            values = values * triton.load(norm.at[mine], mask=is_mine, other=0).astype(jnp.float32)
        product = jnp.sum(values[:, None] * read.astype(jnp.float32), axis=0)
        scale = lax.rsqrt(jnp.sum(every * every) / width + epsilon)  # for which the product need not wait
        triton.store(parts.at[row, part, columns], product * scale, mask=is_column)
        if norm is not None:

            @pl.when(pl.program_id(2) == 0)
            def _() -> None:
                triton.store(last.at[row, mine], (values * scale).astype(x.dtype), mask=is_mine)

    grid = rows, pl.cdiv(width, _PART), pl.cdiv(inner, _COLUMNS)
    wanted = (
        jax.ShapeDtypeStruct((rows, grid[1], inner), jnp.float32),
        None if network.norm_D is None else jax.ShapeDtypeStruct(x.shape, x.dtype),
    )
    given = x, network.w_in_DI, network.norm_D
    parts, last = call_kernel(
        lambda given, *made: kernel(given, made),
        grid,
        given,
        wanted,
        warps=_WARPS,
        name="weighed_inside",
        is_interpreted=is_interpreted,
    )
    mixed_last = x_BSD if last is None else last.reshape(x_BSD.shape)
    static = None if network.static_CM is None else network.static_CM.reshape(-1)
    return mixed_last, Inside(parts, network.w_out_ICM.reshape(inner, -1), static)


class Weigher:
    """Makes the weights of a program's row, inside a kernel; what they are made of is being read from the first."""

    def __init__(self, inside: Inside, activation: Activation, dtype: Any, *, is_interpreted: bool) -> None:
        parts, w_out, static = inside
        inner, count = w_out.shape
        lane, place = _places(lanes(count)), _places(pl.next_power_of_2(inner))
        part = _places(pl.next_power_of_2(parts.shape[1]))
        self._dtype, self._is_interpreted = dtype, is_interpreted
        self._activation = _gelu if activation is gelu else activation
        of_row = parts.at[pl.program_id(0), pl.ds(0, part.size), pl.ds(0, place.size)]
        is_part = (part[:, None] < parts.shape[1]) & (place[None, :] < inner)
        self._parts = triton.load(of_row, mask=is_part, other=0)
        is_weight, every = (place[:, None] < inner) & (lane[None, :] < count), pl.ds(0, lane.size)
        self._w_out = triton.load(w_out.at[pl.ds(0, place.size), every], mask=is_weight, other=0)
        self._static = None if static is None else triton.load(static.at[every], mask=lane < count, other=0)

    def write(self, to: Any) -> None:
        """Writes the weights to the row's place [rows, lanes], from where all of the program may read them."""
        product = jnp.sum(self._parts, axis=0).astype(self._dtype).astype(jnp.float32)  # a product is of their type
        active = self._activation(product).astype(self._dtype).astype(jnp.float32)
        weights = jnp.sum(active[:, None] * self._w_out.astype(jnp.float32), axis=0)
        to[pl.program_id(0), :] = weights if self._static is None else weights + self._static.astype(jnp.float32)
        if not self._is_interpreted:  # by one thread, which waits for none
            triton.debug_barrier()


def _places(count: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (count,), 0)


def _gelu(x: Array) -> Array:
    """Triton by way of JAX has no error function: 7.1.26 of Abramowitz and Stegun, within 1.5e-7."""
    z = jnp.abs(x) * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * jnp.exp(-z * z)  # of the normal distribution, beyond |x|
    return x * jnp.where(x < 0, tail, 1 - tail)
