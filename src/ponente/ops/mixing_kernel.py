"""Weighted sums over depth by Triton kernels, which read every state once for all ways.

A program has a row. XLA would read the states for every way. Gradients: `mixing_gradients_kernel.py`.
"""

from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from ponente.ops.gated import Activation
from ponente.ops.gpu import MOST_NUMBERS
from ponente.ops.mixing import Arrays, Mixture, Norms, RowNorm, Ways, flat_weights, numbers_normed
from ponente.ops.rows import Reader, Rows, lanes
from ponente.ops.weighing_kernel import Inside, Weigher

_WIDEST = 4096  # numbers of a row: all ways' sums of it are held at once
_NUMBERS = 16  # of a row that each thread has in sums of many rows: half as many read weights


def has_kernel(state: Array) -> bool:
    """Whether states of this shape are for the kernel."""
    return state.shape[-1] <= _WIDEST and state.size <= MOST_NUMBERS


class HalfWeighed(NamedTuple):
    """A mixture whose weights are made by the kernel that mixes, of the network's first product."""

    inside: Inside
    activation: Activation
    states: Arrays
    base_BSD: Array | None
    after_D: Array | None


class Streams(NamedTuple):
    """The streams, of which states; those that were normed, before what is added behind; their rows' scales."""

    streams: Arrays
    states: Arrays
    units: Arrays
    scales: Array  # [rows, normed ways]


class _Sources(NamedTuple):
    """What the kernel of sums takes."""

    weights: Any  # [rows, ways * states], or what they are made of
    states: tuple[Any, ...]
    base: Any
    after: Any
    norm: RowNorm | None  # which makes one state more of the base
    norms: tuple[Any, ...]

    def in_order(self, ways: Ways) -> list[Any]:
        """The arrays, as they are used."""
        behind = ((self.after if way.is_behind else None, norm) for way, norm in zip(ways, self.norms, strict=True))
        norm = None if self.norm is None else self.norm.weight_D
        return [one for one in (*self.states, self.base, norm, *chain(*behind)) if one is not None]


class _Sums(NamedTuple):
    """What it makes; `behind` are the units of streams to which the base was added behind their norms."""

    streams: tuple[Any, ...]
    behind: tuple[Any, ...]
    scales: Any
    weights: Any
    last: Any  # of the states, where the base is normed


def mixed(
    mixture: Mixture | HalfWeighed,
    ways: Ways,
    epsilon: float,
    *,
    norms: Norms | None = None,
    keeps_units: bool = False,
    is_interpreted: bool = False,
) -> Streams:
    """The streams, and what gradients are made of.

    Args:
        norms: weights of the streams, for passes that no gradient is made of: what it would be made of is not given.
        keeps_units: whether those that something is added to behind their norm are also given without that.
    """
    assert norms is None or not keeps_units
    state, count, normed = mixture.states[0], len(mixture.states), numbers_normed(ways)
    rows = Rows.like(state, is_interpreted=is_interpreted)
    if isinstance(mixture, Mixture):
        rows = replace(rows, numbers=_NUMBERS)
    behind = [number for number, way in enumerate(ways) if way.is_behind and keeps_units]

    def kernel(given: _Sources, made: _Sums) -> None:
        if not isinstance(mixture, HalfWeighed):
            reader = Reader(rows, given.in_order(ways))  # no write is between them: the compiler reads ahead
            _write_streams(given, made, given.weights, reader, rows, ways, epsilon)
            return
        weigher = Weigher(given.weights, mixture.activation, state.dtype, is_interpreted=is_interpreted)
        reader = Reader(rows, given.in_order(ways), rows.far_ahead)
        weigher.write(made.weights)
        _write_streams(given, made, made.weights, reader, rows, ways, epsilon)

    weights = flat_weights(mixture.weights_BSCM) if isinstance(mixture, Mixture) else mixture.inside
    states, norm = mixture.states, mixture.norm if isinstance(mixture, Mixture) else None
    if norm is not None:
        states, norm = states[:-1], RowNorm(norm.scale_BS1.reshape(-1), rows.of(norm.weight_D))
    beside = mixture.base_BSD, mixture.after_D, norms or (None,) * len(ways)
    in_rows, base, after, behind_norms = rows.of((states, *beside))
    given = _Sources(weights, in_rows, base, after, norm, behind_norms)
    like = jax.ShapeDtypeStruct((state.size // rows.width, rows.parts, rows.width // rows.parts), state.dtype)
    scales = jax.ShapeDtypeStruct((like.shape[0], max(1, len(normed))), jnp.float32)
    room = (like.shape[0], lanes(len(ways) * count)) if isinstance(mixture, HalfWeighed) else None
    wanted = _Sums(
        streams=(like,) * len(ways),
        behind=(like,) * len(behind),
        scales=scales,
        weights=None if room is None else jax.ShapeDtypeStruct(room, jnp.float32),
        last=None if norm is None else like,
    )
    made = rows.call(kernel, given, wanted, f"mixed_{count}")
    streams, extra, last = jax.tree.map(
        lambda one: one.reshape(state.shape), (made.streams, made.behind, () if norm is None else (made.last,))
    )
    units = {number: streams[number] for number in normed} | dict(zip(behind, extra, strict=True))
    kept = tuple(units[number] for number in normed) if norms is None else ()
    return Streams(streams, (*states, *last), kept, made.scales)


def _write_streams(
    given: _Sources,
    made: _Sums,
    weights: Any,
    reader: Reader,
    rows: Rows,
    ways: Ways,
    epsilon: float,
) -> None:
    """Mixes a row by its weights."""
    row, normed, behind = pl.program_id(0), numbers_normed(ways), iter(made.behind)
    count = len(given.states) + (given.norm is not None)

    def added(sums: list[Array], source: int, values: Array) -> list[Array]:
        each = (weights[row, way * count + source] for way in range(len(ways)))
        return [rows.plus_product(total, values, weight) for total, weight in zip(sums, each, strict=True)]

    sums = [rows.zeros()] * len(ways)
    for source in range(len(given.states)):
        sums = added(sums, source, reader.next())
    base: Any = None if given.base is None else reader.next()
    if given.norm is not None:
        last = (base * given.norm.scale_BS1[row] * reader.next()).astype(made.last.dtype)
        rows.write(made.last, last)
        sums = added(sums, count - 1, last)
    sums = [total + base if way.has_base else total for way, total in zip(ways, sums, strict=True)]
    apart = [rows.apart(sums[number]) for number in normed]
    squares = rows.sums([rows.products(one, one) for one in apart])
    for number, (way, total) in enumerate(zip(ways, sums, strict=True)):
        if way.is_normed:
            place = normed.index(number)
            scale = lax.rsqrt(squares[place] / rows.width + epsilon)
            made.scales[row, place] = scale
            total = total * scale
        if way.is_behind:
            if made.behind:
                rows.write(next(behind), total)
            total = base + total * reader.next()
        if given.norms[number] is not None:
            total = total * reader.next()
        rows.write(made.streams[number], total)
