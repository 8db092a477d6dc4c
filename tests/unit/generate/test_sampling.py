"""The choice of the next token: against numpy, and by frequencies of many draws under fixed seeds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.generate.sampling import Choice, SamplingConfig, choice_of, keys_of, only_known

DRAWS, VOCABULARY = 20_000, 12


def logits(seed: int = 0, rows: int = 1) -> jax.Array:
    return 2 * jax.random.normal(jax.random.key(seed), (rows, VOCABULARY))


@jax.jit
def chosen(choice: Choice, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
    return choice(logits_BV, keys_B)


def drawn(logits_BV: jax.Array, rows: int = DRAWS, position: int = 5, **settings: Any) -> np.ndarray:
    """Many draws from one row of logits, or one from each of many."""
    sampling = SamplingConfig(**settings)
    keys = keys_of(jnp.uint32(sampling.seed), jnp.arange(rows), jnp.full(rows, position))
    many = jnp.broadcast_to(logits_BV, (rows, logits_BV.shape[1]))
    return np.asarray(chosen(choice_of(sampling), many, keys))


def probabilities(logits_BV: jax.Array, temperature: float = 1.0) -> np.ndarray:
    scaled = np.asarray(logits_BV[0], np.float64) / temperature
    shares: np.ndarray = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    return shares


def likeliest(shares: np.ndarray, top_p: float) -> set[int]:
    """The smallest set of likeliest ids that has the probability."""
    order = np.argsort(-shares, kind="stable")
    count = int(np.searchsorted(np.cumsum(shares[order]), top_p)) + 1
    return set(order[:count].tolist())


def test_without_temperature_the_likeliest_is_taken_and_of_equals_the_lowest_id() -> None:
    rows = jnp.array([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0], [-jnp.inf, -5.0, -4.0, -jnp.inf]])
    assert drawn(rows, rows=3).tolist() == [1, 0, 2]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    expected = DRAWS * probabilities(logits(), temperature)
    counts = np.bincount(drawn(logits(), temperature=temperature), minlength=VOCABULARY)
    deviations = (counts - expected) ** 2 / expected
    assert deviations.sum() < 31.3  # chi-square of 11 degrees: one in a thousand is more


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-30},
        {"temperature": 1e-5},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5, "top_p": 1e-6},
    ],
)
def test_the_smallest_temperature_and_one_token_to_choose_from_give_the_likeliest(settings: dict[str, Any]) -> None:
    rows = logits(seed=3, rows=DRAWS)
    assert np.mean(drawn(rows, **settings) == np.argmax(rows, axis=-1)) == 1.0


def test_of_equals_the_first_is_the_top_one() -> None:
    assert set(drawn(jnp.zeros((1, VOCABULARY)), temperature=1.5, top_k=1).tolist()) == {0}


@pytest.mark.parametrize("top_k", [2, 11, 12])
def test_top_k_leaves_the_likeliest_and_their_frequencies(top_k: int) -> None:
    shares = probabilities(logits(1))
    kept = np.argsort(-shares)[:top_k]
    counts = np.bincount(drawn(logits(1), temperature=1.0, top_k=top_k), minlength=VOCABULARY)
    assert set(np.flatnonzero(counts)) <= set(kept.tolist())
    np.testing.assert_allclose(counts[kept] / DRAWS, shares[kept] / shares[kept].sum(), atol=0.012)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.8, 0.95])
def test_top_p_cuts_the_tail(seed: int, top_p: float) -> None:
    shares = probabilities(logits(seed), 1.5)
    kept = likeliest(shares, top_p)
    assert set(drawn(logits(seed), temperature=1.5, top_p=top_p).tolist()) == kept


def test_top_p_counts_among_the_top_k() -> None:
    flat = jnp.log(jnp.array([[0.3, 0.25, 0.2, 0.15, 0.1]]))
    assert set(drawn(flat, temperature=1.0, top_p=0.6).tolist()) == {0, 1, 2}
    assert set(drawn(flat, temperature=1.0, top_p=0.5, top_k=2).tolist()) == {0}


def test_top_p_of_one_cuts_nothing() -> None:
    assert np.array_equal(drawn(logits(), temperature=1.0, top_p=1.0), drawn(logits(), temperature=1.0))


@pytest.mark.parametrize("cut", [{}, {"top_k": 9}, {"top_p": 0.99}])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_ids_beyond_the_tokenizer_never_win(temperature: float, cut: dict[str, Any]) -> None:
    padded = only_known(logits().at[:, 7:].add(50.0), jnp.int32(7))
    assert set(drawn(padded, temperature=temperature, **cut).tolist()) <= set(range(7))


@pytest.mark.parametrize(
    "other", [lambda: drawn(logits(), temperature=1.0, seed=1), lambda: drawn(logits(), temperature=1.0, position=6)]
)
def test_draws_differ_by_seed_and_position_and_row(other: Callable[[], np.ndarray]) -> None:
    first = drawn(logits(), temperature=1.0)
    shares = probabilities(logits())
    by_chance = float(np.sum(shares**2))
    assert np.mean(first == other()) == pytest.approx(by_chance, abs=0.02)
    assert np.mean(first[1:] == first[:-1]) == pytest.approx(by_chance, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"found temperature: -0.1; needed 0 \(the likeliest\) or more. Change temperature."),
        ({"temperature": float("nan")}, "found temperature: nan"),
        ({"top_k": 0}, "found top_k: 0; needed 1 or more, or none"),
        ({"top_p": 0.0}, "found top_p: 0.0; needed more than 0 and at most 1, or none"),
        ({"top_p": 1.5}, "found top_p: 1.5"),
        ({"max_new_tokens": 0}, "found max_new_tokens: 0; needed 1 or more"),
        ({"seed": -1}, "found seed: -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        SamplingConfig(**settings)
