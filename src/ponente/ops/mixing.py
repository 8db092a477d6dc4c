"""Weighted sums over depth: of the states that a model's layers left so far, one sum for each way they are used.

In: weights [B, S, C, M] in float32 and M states [B, S, D]. Out: C streams [B, S, D] and the states again. Whoever mixes
them next takes those: their gradient is then made by adding to what later layers made, one array for each state,
instead of one for each pair of a layer and a state. B batch, S sequence, D width.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gpu import has_triton

logger = logging.getLogger(__name__)

Arrays = tuple[Array, ...]
Norms = tuple[Array | None, ...]  # weights [D] of each stream


@dataclass(frozen=True)
class Way:
    """What is done to a sum: a base is added, it is divided by its root mean square; or the base is added behind."""

    has_base: bool = False
    is_normed: bool = False
    is_behind: bool = False  # the base is added to what is normed and multiplied by a weight


Ways = tuple[Way, ...]


def takes_base(ways: Ways) -> bool:
    """Whether a base is added to any of the sums, before its norm or behind."""
    return any(way.has_base or way.is_behind for way in ways)


def numbers_normed(ways: Ways) -> list[int]:
    """Of the ways whose sums are normed."""
    return [number for number, way in enumerate(ways) if way.is_normed]


@dataclass(frozen=True)
class Turn:
    """Who makes the gradient by which states, where several mix the same one after the other.

    To add to a gradient is to read and to write it; those of several mixtures are added at once where the later leave
    them to the first, by all states that it has.
    """

    own: int | None = None  # of so many of the last states it is made here, the rest left to another; None: of all
    owed: tuple[int, ...] = ()  # the ways of those that follow and leave theirs to this one, in their order
    begins: bool = False  # none who mixes these states later makes gradients that it could add to
    leaves_after: bool = False  # who takes the stream with the weight behind its norm makes that weight's gradient

    @property
    def owes(self) -> bool:
        return self.own is not None


ALONE = Turn()


def together(ways: Sequence[int], *, ends: bool) -> tuple[Turn, ...]:
    """The turns of mixtures one after the other, of so many ways each: the first makes what the others leave.

    Args:
        ends: whether nobody mixes their states behind them.
    """
    last = len(ways) - 1
    left = (Turn(own=place, begins=ends and place == last) for place in range(1, len(ways)))
    return Turn(owed=tuple(ways[1:]), begins=ends), *left


class Debt(NamedTuple):
    """What makes the gradient that was left to another: only gradients of it have values."""

    weights_BSCM: Array
    by_sums: Arrays


class Mixed(NamedTuple):
    """The streams, in the type of the states, the states for whoever mixes them next, and debts of those that do.

    Where the gradient by the weight behind a norm is left to others, the unit that this weight was multiplied with is
    for them: only in a pass that gradients are made of it has values.
    """

    streams: Arrays
    states: Arrays
    debts: tuple[Debt, ...] = ()
    unit_BSD: Array | None = None


class RowNorm(NamedTuple):
    """A norm: what each row is multiplied by, and the weight."""

    scale_BS1: Array
    weight_D: Array


class Mixture(NamedTuple):
    """What is mixed, and what its sums are added to."""

    weights_BSCM: Array
    states: Arrays
    base_BSD: Array | None
    after_D: Array | None  # the weight of sums that the base is added behind
    norm: RowNorm | None = None  # of the base, which makes the last of the states: only for gradients is it one of them


def flat_weights(weights_BSCM: Array) -> Array:
    """Weights as kernels read them, [rows, ways * states] in float32."""
    return weights_BSCM.astype(jnp.float32).reshape(-1, weights_BSCM.shape[-2] * weights_BSCM.shape[-1])


def has_kernel_for(state: Array) -> bool:
    """Whether a kernel mixes such states; it can be given a norm instead of the last of them."""
    if not has_triton():
        return False
    from ponente.ops.mixing_kernel import has_kernel

    if has_kernel(state):
        return True
    _tell_plain(state.shape)
    return False


@cache
def _tell_plain(shape: tuple[int, ...]) -> None:
    logger.warning("mixtures of states %s: XLA's, which are slower; ours are for narrower states or fewer rows", shape)


def mix(mixture: Mixture, ways: Ways, epsilon: float, debts: tuple[Debt, ...] = (), turn: Turn = ALONE) -> Mixed:
    """The streams of a mixture.

    Args:
        debts: what the one that mixed before handed over; the first of them is of this one, if it owes.

    Example: `mix(Mixture(weights, states, None, None), (*[Way(is_normed=True)] * 3, Way()), 1e-6).streams`
    """
    if not has_kernel_for(mixture.states[0]):
        return Mixed(mix_plain(mixture, ways, epsilon), mixture.states)
    mine, later = (debts[0], debts[1:]) if turn.owes else (None, ())
    mixed = _mix_by_kernel(mixture, mine, ways, epsilon, turn)
    return mixed._replace(debts=later or mixed.debts)


def mix_for_good(mixture: Mixture, ways: Ways, epsilon: float, norms: Norms) -> Arrays:
    """The streams, each times a weight where it has one, in passes that no gradient is made of, such as decoding."""
    if not has_kernel_for(mixture.states[0]):
        return mix_plain(mixture, ways, epsilon, norms)
    from ponente.ops.mixing_kernel import mixed

    return mixed(mixture, ways, epsilon, norms=norms).streams


def mix_plain(mixture: Mixture, ways: Ways, epsilon: float, norms: Norms | None = None) -> Arrays:
    """The streams, in float32 until the end; kernels compute the same."""
    weights_BSCM, states, base_BSD, after_D, norm = mixture
    assert norm is None  # only kernels norm the last state
    base = None if base_BSD is None else base_BSD.astype(jnp.float32)
    made = []
    for number, way in enumerate(ways):
        total = jnp.zeros((), jnp.float32)
        for source, state in enumerate(states):
            total = total + weights_BSCM[..., number, source, None] * state.astype(jnp.float32)
        if way.has_base and base is not None:
            total = base + total
        if way.is_normed:
            total = total * jax.lax.rsqrt(jnp.mean(total * total, axis=-1, keepdims=True) + epsilon)
        if way.is_behind and base is not None and after_D is not None:
            total = base + total * after_D.astype(jnp.float32)
        if norms is not None and (norm_D := norms[number]) is not None:
            total = total * norm_D.astype(jnp.float32)
        made.append(total.astype(states[0].dtype))
    return tuple(made)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _mix_by_kernel(mixture: Mixture, debt: Debt | None, ways: Ways, epsilon: float, turn: Turn) -> Mixed:
    from ponente.ops.mixing_kernel import mixed

    unit = jnp.zeros_like(mixture.states[0]) if turn.leaves_after else None
    made = mixed(mixture, ways, epsilon)
    return Mixed(made.streams, made.states, _no_debts(mixture, turn), unit)


def _no_debts(mixture: Mixture, turn: Turn) -> tuple[Debt, ...]:
    *rows, _, count = mixture.weights_BSCM.shape
    return tuple(
        Debt(jnp.zeros((*rows, ways, count + later), jnp.float32), (jnp.zeros_like(mixture.states[0]),) * ways)
        for later, ways in enumerate(turn.owed, start=1)
    )


def _forward(mixture: Mixture, debt: Debt | None, ways: Ways, epsilon: float, turn: Turn) -> tuple[Mixed, Any]:
    from ponente.ops.mixing_kernel import mixed

    made = mixed(mixture, ways, epsilon, keeps_units=True)
    kept = mixture._replace(base_BSD=None, states=made.states), made.units, made.scales
    unit = None
    if turn.leaves_after:
        normed = [way for way in ways if way.is_normed]
        (unit,) = (one for way, one in zip(normed, made.units, strict=True) if way.is_behind)
    return Mixed(made.streams, made.states, _no_debts(mixture, turn), unit), kept


def _backward(ways: Ways, epsilon: float, turn: Turn, kept: Any, by: Mixed) -> tuple[Mixture, Debt | None]:
    from ponente.ops.mixing_gradients_kernel import mixed_gradients

    mixture, units, scales = kept
    gradients, debt = mixed_gradients(mixture, units, scales, by, ways, turn)
    return gradients._replace(norm=jax.tree.map(jnp.zeros_like, mixture.norm)), debt


_mix_by_kernel.defvjp(_forward, _backward)
