"""Rows of arrays in Triton kernels whose programs have one each: read ahead, added up, written.

In: arrays of as many rows, and arrays [width] that are the same for all. Out: tiles in float32, of parts of a row that
each are a warp's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.kernel_call import call_kernel
from ponente.ops.prefetch import fetch_row

_FAR_AHEAD, _MANY_WARPS_AHEAD = 32, 12  # a thread may have 255 registers, or 128
_WARP = 32  # threads
_READ_BYTES = 16  # that a thread reads at once
AT_ONCE = 4  # sums that `sums_in_lanes` makes
_PLUS_HALF_PRODUCTS = """{
    .reg .b32 low, high;
    shl.b32 low, $2, 16;
    and.b32 high, $2, 0xffff0000;
    fma.rn.f32 $0, low, $3, $5;
    fma.rn.f32 $1, high, $4, $6;
}"""
_SUMS_IN_LANES = """{
    .reg .pred odd, upper, astray;
    .reg .b32 lane, bit;
    .reg .f32 low, high, own, other;
    mov.u32 lane, %laneid;
    and.b32 bit, lane, 1;
    setp.ne.u32 odd, bit, 0;
    and.b32 bit, lane, 2;
    setp.ne.u32 upper, bit, 0;
    setp.ne.u32 astray, lane, $5;
    selp.f32 low, $2, $1, odd;
    selp.f32 other, $1, $2, odd;
    shfl.sync.bfly.b32 other, other, 1, 31, -1;
    add.f32 low, low, other;
    selp.f32 high, $4, $3, odd;
    selp.f32 other, $3, $4, odd;
    shfl.sync.bfly.b32 other, other, 1, 31, -1;
    add.f32 high, high, other;
    selp.f32 own, high, low, upper;
    selp.f32 other, low, high, upper;
    shfl.sync.bfly.b32 other, other, 2, 31, -1;
    add.f32 own, own, other;
    shfl.sync.bfly.b32 other, own, 4, 31, -1;
    add.f32 own, own, other;
    shfl.sync.bfly.b32 other, own, 8, 31, -1;
    add.f32 own, own, other;
    shfl.sync.bfly.b32 other, own, 16, 31, -1;
    add.f32 own, own, other;
    selp.f32 $0, 0f7FFFFFFF, own, astray;
}"""


def lanes(count: int) -> int:
    """Places for so many numbers, one or more for each thread of a warp."""
    return pl.next_power_of_2(max(count, 32))


@dataclass(frozen=True)
class Rows:
    """The rows of states, each in parts; a program has one, whose tile is as large as the next powers of two.

    Args:
        numbers: of a row that each thread has: with more, fewer threads read what all of them need, such as weights,
            and each needs more registers.
    """

    width: int
    item_bytes: int
    is_interpreted: bool
    numbers: int = 8

    @classmethod
    def like(cls, state: Array, *, is_interpreted: bool) -> "Rows":
        return cls(state.shape[-1], state.dtype.itemsize, is_interpreted)

    @property
    def vector(self) -> int:
        """Numbers that a thread reads at once."""
        return _READ_BYTES // self.item_bytes

    @property
    def parts(self) -> int:
        """Each is one warp's, which adds it up without waiting for others."""
        part = _WARP * self.vector
        return self.width // part if self.width % part == 0 else 1

    @property
    def tile(self) -> tuple[int, int]:
        return pl.next_power_of_2(self.parts), pl.next_power_of_2(self.width // self.parts)

    @property
    def warps(self) -> int:
        return max(1, math.prod(self.tile) // (_WARP * self.numbers))

    @property
    def far_ahead(self) -> int:
        """So many arrays can be read ahead where few programs run."""
        return _FAR_AHEAD if self.warps <= 8 else _MANY_WARPS_AHEAD

    def call(
        self,
        kernel: Callable[[Any, Any], None],
        given: Any,
        wanted: Any,
        name: str,
        in_place: dict[int, int] | None = None,
    ) -> Any:
        """What a kernel makes of all rows, `kernel(given, made)`; what is wanted has them first."""
        return call_kernel(
            lambda given, *made: kernel(given, type(wanted)(*made)),
            (jax.tree.leaves(wanted)[0].shape[0],),
            given,
            wanted,
            warps=self.warps,
            name=name,
            is_interpreted=self.is_interpreted,
            in_place=in_place,
        )

    def of(self, arrays: Any) -> Any:
        """Arrays in rows and parts; those of one row in parts alone."""
        shape = self.parts, self.width // self.parts
        return jax.tree.map(lambda one: one.reshape(shape if one.ndim == 1 else (-1, *shape)), arrays)

    def begin_to_read(self, array: Any) -> Array:
        """The numbers of an array, in its own type; nobody waits for them until they are used."""
        is_there = self._is_there()
        return triton.load(self._place(array), mask=is_there, other=None if is_there is None else 0)

    def fetch(self, array: Any) -> None:
        """Begins to bring the row of an array to the cache."""
        if len(array.shape) > len(self.tile) and not self.is_interpreted:
            fetch_row(array, pl.program_id(0))

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

    def apart(self, tile: Array) -> list[Array]:
        """The first number of all that a thread reads at once, the second, …"""
        parts, width = self.tile
        vector = min(self.vector, width)
        each = lax.split(tile.reshape(parts, width // vector, vector), [1] * vector, axis=2)
        return [one.reshape(parts, width // vector) for one in each]

    def products(self, a: Sequence[Array], b: Sequence[Array]) -> Array:
        """The sum of the products that each thread has, of tiles apart; of whole tiles it would take twice as long."""
        total = a[0] * b[0]
        for one, other in zip(a[1:], b[1:], strict=True):
            total = self.plus_product(total, one, other)
        return total

    def sums_in_lanes(self, four: Sequence[Array]) -> Array:
        """Sums over the last axis of tiles such as `products` makes, in lanes [parts, 32]: lane l has that of l % 4.

        One after the other they take 20 exchanges between the lanes of a warp, and 6 by `_SUMS_IN_LANES`. That relies
        on where Triton keeps numbers; were one not there, all would be NaN.
        """
        lane = lax.broadcasted_iota(jnp.int32, (self.tile[0], _WARP), 1)
        if self.is_interpreted or four[0].shape != lane.shape or self.warps != self.tile[0]:
            made = jnp.zeros(lane.shape, jnp.float32)
            for number, tile in enumerate(four):
                made = jnp.where(lane % AT_ONCE == number, jnp.sum(tile, axis=1, keepdims=True), made)
            return made
        like = [jax.ShapeDtypeStruct(lane.shape, jnp.float32)]
        asm, constraints = _SUMS_IN_LANES, "=f,f,f,f,f,r"
        (made,) = triton.elementwise_inline_asm(
            asm, args=[*four, lane], constraints=constraints, pack=1, result_shape_dtypes=like
        )
        return made

    def zeros(self) -> Array:
        return jnp.zeros(self.tile, jnp.float32)

    def plus_product(self, total: Array, tile: Array, factor: Array) -> Array:
        """total + tile * factor, in one instruction; of a product and a sum XLA's Triton makes two.

        A tile in bfloat16 takes half the registers until then: its numbers are the upper halves of those in float32.
        """
        is_half = tile.dtype == jnp.bfloat16
        tile = tile if is_half else tile.astype(jnp.float32)
        if self.is_interpreted:
            return total + tile * factor
        given = [tile, jnp.broadcast_to(factor, tile.shape), jnp.broadcast_to(total, tile.shape)]
        like = [jax.ShapeDtypeStruct(tile.shape, jnp.float32)]
        asm, constraints = "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f"
        if is_half:
            asm, constraints = _PLUS_HALF_PRODUCTS, "=f,=f,r,f,f,f,f"
        (made,) = triton.elementwise_inline_asm(
            asm, args=given, constraints=constraints, pack=2 if is_half else 1, result_shape_dtypes=like
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
    """Rows of arrays, one after the other.

    Some are being read before they are used, for a read takes long, and one that stands behind a write waits for it.
    Those that follow are on their way to the cache.
    """

    def __init__(self, rows: Rows, arrays: Sequence[Any], ahead: int = 0, fetched: int = 0) -> None:
        self._rows, self._left, self._begun = rows, list(arrays), list[Array]()
        self._unfetched = list(arrays[ahead:]) if fetched else []
        self._begin(ahead)
        self._fetch(fetched)

    def next(self) -> Array:
        return self.next_as_it_is().astype(jnp.float32)

    def next_as_it_is(self) -> Array:
        """In its own type."""
        self._begin(1)
        self._fetch(1)
        return self._begun.pop(0)

    def _begin(self, count: int) -> None:
        self._begun += [self._rows.begin_to_read(array) for array in self._left[:count]]
        del self._left[:count]

    def _fetch(self, count: int) -> None:
        for array in self._unfetched[:count]:
            self._rows.fetch(array)
        del self._unfetched[:count]
