"""Mixtures: exact counts, nobody forgotten, no example skipped or drawn twice, and where they end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.batches.keys import root_key
from ponente.batches.mixture import PERIOD, Mixture, WeightStage
from ponente.config.errors import RefusedError

KEY = root_key(0, "mixture")
weight_lists = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=6)


def mixture(weights: list[float], block_size: int = 64) -> Mixture:
    names = [f"d{number}" for number in range(len(weights))]
    return Mixture(names, [WeightStage(0, dict(zip(names, weights, strict=True)))], block_size, KEY)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Up to three stages, each from any example on."""
    names = [f"d{number}" for number in range(draw(st.integers(1, 5)))]
    starts = [0, *sorted(draw(st.sets(st.integers(1, 900), max_size=2)))]
    weights = st.lists(st.sampled_from([0.0, 0.001, 0.3, 1.0, 7.0]), min_size=len(names), max_size=len(names))
    stages = [WeightStage(start, dict(zip(names, draw(weights.filter(any)), strict=True))) for start in starts]
    return Mixture(names, stages, draw(st.integers(1, 130)), KEY)


@settings(deadline=None)
@given(mixed=mixtures(), first=st.integers(0, 1200))
def test_each_dataset_is_walked_through_one_by_one(mixed: Mixture, first: int) -> None:
    dataset, position = mixed.locate(np.arange(first, first + 400))
    before, after = mixed.counts(first), mixed.counts(first + 400)
    for number in range(len(mixed.names)):
        assert position[dataset == number].tolist() == list(range(before[number], after[number]))


@settings(deadline=None)
@given(mixed=mixtures(), data=st.data())
def test_an_index_gives_the_same_alone_and_among_others(mixed: Mixture, data: st.DataObject) -> None:
    indices = np.array(data.draw(st.lists(st.integers(0, 10**12), min_size=1, max_size=6)))
    together = np.stack(mixed.locate(indices), axis=1).tolist()
    assert together == [[int(part[0]) for part in mixed.locate(indices[i : i + 1])] for i in range(len(indices))]


@given(weights=weight_lists, block=st.integers(0, 10**6))
def test_every_block_has_the_same_numbers_or_one_more(weights: list[float], block: int) -> None:
    mixed = mixture(weights)
    blocks = [0, 1, 511, 512, 1023, 1024, block]
    counts = np.array([mixed.counts((one + 1) * 64) - mixed.counts(one * 64) for one in blocks])
    assert (counts.sum(axis=1) == 64).all()
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()


@given(weights=weight_lists)
def test_over_a_period_the_numbers_are_the_weights_and_no_weight_gets_none(weights: list[float]) -> None:
    counts = mixture(weights).counts(64 * PERIOD)
    exact = np.array(weights) / sum(weights) * 64 * PERIOD
    assert counts.sum() == 64 * PERIOD
    assert (counts >= 1).all()
    assert np.abs(counts - exact).max() <= len(weights)


def test_a_tiny_weight_is_spread_over_blocks_evenly() -> None:
    mixed = mixture([1.0, 1 / 4096], block_size=512)  # one example in eight blocks
    per_blocks = np.diff([int(mixed.counts(block * 512)[1]) for block in range(0, 512 + 1, 8)])
    assert per_blocks.tolist() == [1] * 64


def test_a_weight_that_gets_more_than_its_share_is_told(caplog: pytest.LogCaptureFixture) -> None:
    mixture([1.0, 1e-9])
    assert "d1 get one example in 65536 each, more than their weights say" in caplog.text
    with pytest.raises(RefusedError, match="datasets with tiny weights"):
        mixture([1e9, *[1e-9] * 600], block_size=1)


def test_blocks_are_shuffled_each_in_its_own_way() -> None:
    first, second = (mixture([1, 1]).locate(np.arange(64) + block * 64)[0].tolist() for block in (0, 1))
    assert first != second
    assert first != sorted(first)


def test_restart_has_no_end() -> None:
    assert mixture([1, 1]).length([10, 10], "restart") is None


@settings(deadline=None)
@given(mixed=mixtures(), data=st.data())
def test_first_exhausted_ends_just_before_a_dataset_would_repeat(mixed: Mixture, data: st.DataObject) -> None:
    lengths = [data.draw(st.integers(1, 400)) for _ in mixed.names]
    end = mixed.length(lengths, "first_exhausted")
    assert end is not None
    assert (mixed.counts(end) <= lengths).all()
    assert (mixed.counts(end + 1) > lengths).any()


@settings(deadline=None)
@given(weights=st.lists(st.floats(0.01, 5), min_size=1, max_size=4), data=st.data())
def test_all_exhausted_ends_when_every_dataset_was_seen_whole(weights: list[float], data: st.DataObject) -> None:
    mixed = mixture(weights)
    lengths = [data.draw(st.integers(1, 300)) for _ in weights]
    end = mixed.length(lengths, "all_exhausted")
    assert end is not None
    assert (mixed.counts(end) >= lengths).all()
    assert (mixed.counts(end - 1) < lengths).any()


def test_a_dataset_that_is_dropped_before_its_end_is_never_exhausted() -> None:
    stages = [WeightStage(0, {"a": 1, "b": 1}), WeightStage(96, {"a": 1})]
    mixed = Mixture(["a", "b"], stages, 16, KEY)
    assert mixed.length([1000, 48], "all_exhausted") == 1048
    with pytest.raises(RefusedError, match="found that b has weight 0 in the last stage"):
        mixed.length([1000, 49], "all_exhausted")


def test_this_mixture_never_changes() -> None:
    """Golden: a run that is resumed with a newer version must see the same mixture."""
    names = ["web", "code", "books"]
    stages = [WeightStage(0, dict(zip(names, (5, 3, 0.01), strict=True))), WeightStage(100, {"books": 1, "web": 1})]
    dataset, position = Mixture(names, stages, 16, root_key(5, "mixture")).locate(np.array([0, 1, 2, 99, 100, 10**7]))
    assert (dataset.tolist(), position.tolist()) == GOLDEN


GOLDEN = ([0, 0, 0, 0, 2, 0], [0, 1, 2, 62, 0, 5000012])
