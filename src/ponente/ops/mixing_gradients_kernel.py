"""Gradients of weighted sums over depth by Triton kernels, which add to the gradient of each state where it lies.

A program has a row. XLA would write a gradient of each pair of a layer and a state.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import chain, islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from ponente.ops.mixing import Arrays, Debt, Mixed, Mixture, Turn, Ways, flat_weights, numbers_normed, takes_base
from ponente.ops.rows import AT_ONCE, Reader, Rows, lanes

_AHEAD, _FEW_AHEAD = 4, 2  # arrays that are being read while one is used, for reads take long; each takes registers
_FETCHED, _FEW_FETCHED = 16, 8  # arrays that come to the cache behind those; what is written takes room in it too


class _Known(NamedTuple):
    """What the kernel of gradients takes."""

    weights: Any
    states: tuple[Any, ...]
    units: tuple[Any, ...]
    scales: Any
    after: Any
    by_streams: tuple[Any, ...]
    owed: tuple[Debt, ...]
    by_states: tuple[Any, ...]  # that later mixtures made; the last, for those made here lie in their places


class _Gradients(NamedTuple):
    """What it makes."""

    by_weights: Any  # [rows, …], of each row state by state, those of all ways, in columns
    by_states: tuple[Any, ...]
    by_base: Any
    left: tuple[Any, ...]


def mixed_gradients(
    mixture: Mixture, units: Arrays, scales: Array, by: Mixed, ways: Ways, turn: Turn, *, is_interpreted: bool = False
) -> tuple[Mixture, Debt | None]:
    """The gradients by all that was mixed, and what is left to the one before.

    Args:
        by: the gradients by streams, by the states that were passed on, to which those of this mixture are added, and
            what those that followed left to this one.
    """
    state, count = mixture.states[0], len(mixture.states)
    rows = Rows.like(state, is_interpreted=is_interpreted)
    own = range(0 if turn.own is None else count - turn.own, count)  # the states whose gradients are made here

    def kernel(known: _Known, made: _Gradients) -> None:
        owed_sums = chain(*(debt.by_sums for debt in known.owed))
        beside = *_of_streams(known, ways), *known.states, *owed_sums, *known.by_states
        ahead = _FEW_AHEAD if len(known.owed) > 1 else _AHEAD
        fetched = _FETCHED if turn.owes else _FEW_FETCHED
        reader = Reader(rows, beside, ahead, fetched)  # in the order in which they are used
        by_sums, by_base = _by_sums(known, ways, rows, reader)
        if by_base is not None:
            rows.write(made.by_base, by_base)
        for array, by_sum in zip(made.left, by_sums, strict=False):
            rows.write(array, by_sum)
        _write_by_weights(made.by_weights, by_sums, count, rows, reader)
        terms = [(by_sum, known.weights, number * count) for number, by_sum in enumerate(by_sums)]
        for later, debt in enumerate(known.owed, start=1):
            sums = (reader.next_as_it_is() for _ in debt.by_sums)
            terms += [(one, debt.weights_BSCM, way * (count + later)) for way, one in enumerate(sums)]
        row = pl.program_id(0)
        for source, array in zip(own, made.by_states, strict=True):
            total = reader.next() if known.by_states else rows.zeros()
            for term, weights, at in terms:
                total = rows.plus_product(total, term, weights[row, at + source])
            rows.write(array, total)

    weights = flat_weights(mixture.weights_BSCM)
    earlier = () if turn.begins else by.states[own[0] :]
    owed = tuple(Debt(flat_weights(debt.weights_BSCM), rows.of(debt.by_sums)) for debt in by.debts)
    states, units_, after, streams, earlier = rows.of((mixture.states, units, mixture.after_D, by.streams, earlier))
    known = _Known(weights, states, units_, scales, after, streams, owed, earlier)
    like = jax.ShapeDtypeStruct(states[0].shape, state.dtype)
    wanted = _Gradients(
        by_weights=jax.ShapeDtypeStruct((len(weights), *_in_columns(weights.shape[1])), jnp.float32),
        by_states=(like,) * len(own),
        by_base=like if takes_base(ways) else None,
        left=(like,) * len(ways) if turn.owes else (),
    )
    first = len(jax.tree.leaves(known)) - len(earlier)
    in_place = {first + number: 1 + number for number in range(len(earlier))}
    name = f"mixed_gradients_{count}"
    made = rows.call(kernel, known, wanted, name, in_place)
    by_weights = made.by_weights.swapaxes(1, 2).reshape(len(weights), -1)[:, : weights.shape[1]]
    by_weights = by_weights.reshape(-1, count, len(ways)).swapaxes(1, 2).reshape(mixture.weights_BSCM.shape)
    by_states, by_base, left = jax.tree.map(
        lambda one: one.reshape(state.shape), (made.by_states, made.by_base, made.left)
    )
    by_after = _by_after(mixture, units, by, ways, turn)
    gradients = Mixture(by_weights, (*by.states[: own[0]], *by_states), by_base, by_after)
    return gradients, Debt(mixture.weights_BSCM, left) if turn.owes else None


def _of_streams(known: _Known, ways: Ways) -> Iterator[Any]:
    """What the gradients by sums are made of, in the order of `_by_sums`."""
    units = iter(known.units)
    for way, by_stream in zip(ways, known.by_streams, strict=True):
        yield by_stream
        if way.is_behind:
            yield known.after
        if way.is_normed:
            yield next(units)


def _by_sums(known: _Known, ways: Ways, rows: Rows, reader: Reader) -> tuple[list[Array], Array | None]:
    """The gradients by the sums of all ways, before their norms, and by the base."""
    by_sums, by_base, units = [], [], dict[int, Array]()
    for number, way in enumerate(ways):
        by_sum = reader.next()
        if way.is_behind:
            by_base.append(by_sum)
            by_sum = by_sum * reader.next()
        if way.is_normed:
            units[number] = reader.next()
        by_sums.append(by_sum)
    along = rows.sums([rows.products(rows.apart(by_sums[number]), rows.apart(unit)) for number, unit in units.items()])
    for place, (number, unit) in enumerate(units.items()):
        scale = known.scales[pl.program_id(0), place]
        by_sums[number] = (by_sums[number] - unit * (along[place] / rows.width)) * scale
    by_base += [by_sum for way, by_sum in zip(ways, by_sums, strict=True) if way.has_base]
    return by_sums, reduce(jnp.add, by_base) if by_base else None


def _write_by_weights(to: Any, by_sums: list[Array], count: int, rows: Rows, reader: Reader) -> None:
    """The gradients by the weights of so many states; `to` has their places in columns, as `_in_columns` says."""
    lane = lax.broadcasted_iota(jnp.int32, (rows.tile[0], to.shape[1]), 1)
    found = [jnp.zeros(lane.shape, jnp.float32)] * to.shape[2]
    products = _products(by_sums, count, rows, reader)
    for first in range(0, len(by_sums) * count, AT_ONCE):
        four = list(islice(products, AT_ONCE))
        four += [jnp.zeros_like(four[0])] * (AT_ONCE - len(four))
        column, place = divmod(first, to.shape[1])
        is_mine = lane // AT_ONCE == place // AT_ONCE
        found[column] = jnp.where(is_mine, rows.sums_in_lanes(four), found[column])
    to[pl.program_id(0), :, :] = jnp.sum(_stacked(found), axis=0).reshape(to.shape[1:])


def _products(by_sums: list[Array], count: int, rows: Rows, reader: Reader) -> Iterator[Array]:
    """Of each state those with the gradients by all sums, as its turn comes to be read."""
    apart = [rows.apart(by_sum) for by_sum in by_sums]
    for _ in range(count):
        values = rows.apart(reader.next())
        yield from (rows.products(by_sum, values) for by_sum in apart)


def _in_columns(count: int) -> tuple[int, int]:
    """The shape in which a row of so many numbers is written: one column after the other, each of a warp's lanes."""
    return lanes(1), pl.next_power_of_2(pl.cdiv(count, lanes(1)))


def _stacked(tiles: list[Array]) -> Array:
    """Tiles along axes of two behind their own, as many as a power of two; warps exchange them at once."""
    if len(tiles) == 1:
        return tiles[0]
    return jnp.stack([_stacked(tiles[::2]), _stacked(tiles[1::2])], axis=-1)


def _by_after(mixture: Mixture, units: Arrays, by: Mixed, ways: Ways, turn: Turn) -> Array | None:
    """The gradient by the weight behind a norm; none of it, where it is left to another."""
    if mixture.after_D is None:
        return None
    if turn.leaves_after:
        return jnp.zeros_like(mixture.after_D)
    unit_of = dict(zip(numbers_normed(ways), units, strict=True))
    total = jnp.zeros(mixture.after_D.shape, jnp.float32)
    for number, way in enumerate(ways):
        if way.is_behind:
            product = by.streams[number].astype(jnp.float32) * unit_of[number].astype(jnp.float32)
            total = total + jnp.sum(product, axis=tuple(range(product.ndim - 1)))
    return total.astype(mixture.after_D.dtype)
