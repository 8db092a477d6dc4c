"""Rows of arrays in Triton kernels whose programs have one each: read ahead, added up, written.

In: arrays of as many rows, and arrays [width] that are the same for all. Out: tiles in float32, of parts of a row that
each are a warp's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

_FAR_AHEAD, _MANY_WARPS_AHEAD = 32, 12  # a thread may have 255 registers, or 128
_NUMBERS = 8  # of a row that each thread has
_PART = 32 * _NUMBERS  # what a warp has of a row: it adds up such a part without waiting for others


def lanes(count: int) -> int:
    """Places for so many numbers, one or more for each thread of a warp."""
    return pl.next_power_of_2(max(count, 32))


@dataclass(frozen=True)
class Rows:
    """The rows of states, each in parts; a program has one, whose tile is as large as the next powers of two."""

    width: int
    is_interpreted: bool

    @property
    def parts(self) -> int:
        return self.width // _PART if self.width % _PART == 0 else 1

    @property
    def tile(self) -> tuple[int, int]:
        return pl.next_power_of_2(self.parts), pl.next_power_of_2(self.width // self.parts)

    @property
    def warps(self) -> int:
        return max(1, math.prod(self.tile) // _PART)

    @property
    def far_ahead(self) -> int:
        """So many arrays can be read ahead where few programs run."""
        return _FAR_AHEAD if self.warps <= 8 else _MANY_WARPS_AHEAD

    def of(self, arrays: Any) -> Any:
        """Arrays in rows and parts; those of one row in parts alone."""
        shape = self.parts, self.width // self.parts
        return jax.tree.map(lambda one: one.reshape(shape if one.ndim == 1 else (-1, *shape)), arrays)

    def begin_to_read(self, array: Any) -> Array:
        """The numbers of an array, in its own type; nobody waits for them until they are used."""
        is_there = self._is_there()
        return triton.load(self._place(array), mask=is_there, other=None if is_there is None else 0)

    def write(self, array: Any, values: Array) -> None:
        triton.store(self._place(array), values.astype(array.dtype), mask=self._is_there())

    def sums(self, tiles: Sequence[Array]) -> list[Array]:
        """The sum of each tile; warps wait for each other once for all of them."""
        lane = lax.broadcasted_iota(jnp.int32, (self.tile[0], lanes(len(tiles))), 1)
        found = jnp.zeros(lane.shape, jnp.float32)
        for number, tile in enumerate(tiles):
            found = jnp.where(lane == number, jnp.sum(tile, axis=1, keepdims=True), found)
        total, place = jnp.sum(found, axis=0), lax.broadcasted_iota(jnp.int32, (lane.shape[1],), 0)
        return [jnp.sum(jnp.where(place == number, total, 0)) for number in range(len(tiles))]

    def zeros(self) -> Array:
        return jnp.zeros(self.tile, jnp.float32)

    def plus_product(self, total: Array, tile: Array, factor: Array) -> Array:
        """total + tile * factor, in one instruction; of a product and a sum XLA's Triton makes two."""
        if self.is_interpreted:
            return total + tile * factor
        given = [tile, jnp.broadcast_to(factor, tile.shape), jnp.broadcast_to(total, tile.shape)]
        like = [jax.ShapeDtypeStruct(tile.shape, jnp.float32)]
        asm, constraints = "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f"
        (made,) = triton.elementwise_inline_asm(
            asm, args=given, constraints=constraints, pack=1, result_shape_dtypes=like
        )
        return made

    def _place(self, array: Any) -> Any:
        whole = pl.ds(0, self.tile[0]), pl.ds(0, self.tile[1])
        return array.at[whole] if len(array.shape) == 2 else array.at[(pl.program_id(0), *whole)]

    def _is_there(self) -> Array | None:
        if math.prod(self.tile) == self.width:
            return None
        part, number = (lax.broadcasted_iota(jnp.int32, self.tile, axis) for axis in (0, 1))
        return (part < self.parts) & (number < self.width // self.parts)


class Reader:
    """Rows of arrays, one after the other, in float32.

    Some are being read before they are used, for a read takes long, and one that stands behind a write waits for it.
    """

    def __init__(self, rows: Rows, arrays: Sequence[Any], ahead: int) -> None:
        self._rows, self._left, self._begun = rows, list(arrays), list[Array]()
        self._begin(ahead)

    def next(self) -> Array:
        self._begin(1)
        return self._begun.pop(0).astype(jnp.float32)

    def _begin(self, count: int) -> None:
        self._begun += [self._rows.begin_to_read(array) for array in self._left[:count]]
        del self._left[:count]
