"""Orders: every epoch has each example once, in an order of its own, and blocks stay together."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.batches.keys import root_key
from ponente.batches.order import (
    AnyOrder,
    BlockShuffle,
    BlockShuffleConfig,
    EraShuffle,
    FullShuffle,
    InOrder,
    OrderConfig,
)
from ponente.config.errors import RefusedError

permutations = st.sampled_from(["feistel", "linear"])
shuffles = st.one_of(
    st.builds(FullShuffle, permutations),
    st.builds(EraShuffle, st.integers(1, 300), permutations),
    st.builds(BlockShuffle, st.integers(1, 40), st.integers(1, 9), permutations),
)
orders = st.one_of(st.builds(InOrder), shuffles)
KEY = root_key(0, "shuffle", "web")


@given(order=orders, length=st.integers(1, 900), epoch=st.integers(0, 5))
def test_every_epoch_has_each_example_once(order: AnyOrder, length: int, epoch: int) -> None:
    found = order.indices(np.arange(length) + epoch * length, length, KEY)
    assert sorted(found.tolist()) == list(range(length))


@given(order=orders, length=st.integers(1, 10**9), data=st.data())
def test_a_position_gives_the_same_alone_and_among_others(order: AnyOrder, length: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, 5 * length), min_size=1, max_size=20)))
    together = order.indices(positions, length, KEY).tolist()
    assert together == [int(order.indices(positions[i : i + 1], length, KEY)[0]) for i in range(len(positions))]


@pytest.mark.parametrize("order", [FullShuffle(), EraShuffle(500), BlockShuffle(16, 8)])
def test_epochs_differ_in_order(order: AnyOrder) -> None:
    first, second = (order.indices(np.arange(1000) + epoch * 1000, 1000, KEY) for epoch in (0, 1))
    assert np.mean(first == second) < 0.05
    assert np.mean(first == order.indices(np.arange(1000), 1000, root_key(1, "shuffle", "web"))) < 0.05


def test_an_era_keeps_its_examples_to_itself() -> None:
    found = EraShuffle(100).indices(np.arange(250), 250, KEY)
    for first in (0, 100, 200):
        assert sorted(found[first : first + 100].tolist()) == list(range(first, min(first + 100, 250)))


def test_a_window_is_made_of_whole_blocks_and_the_ragged_tail_comes_last() -> None:
    found = BlockShuffle(io_block_size=10, window_blocks=4).indices(np.arange(1003), 1003, KEY)
    for first in range(0, 1000, 40):
        blocks, counts = np.unique(found[first : first + 40] // 10, return_counts=True)
        assert counts.tolist() == [10] * len(blocks)
    assert sorted(found[1000:].tolist()) == [1000, 1001, 1002]
    assert np.mean(found // 10 == np.arange(1003) // 10) < 0.1


@given(era=st.integers(1, 200), position=st.integers(0, 10_000), data=st.data())
def test_an_era_needs_no_more_examples_than_its_horizon(era: int, position: int, data: st.DataObject) -> None:
    order = EraShuffle(era)
    horizon = order.horizon(position)
    length = horizon + data.draw(st.integers(0, 1000))
    known = order.indices(np.array([position]), length, KEY)
    assert known == order.indices(np.array([position]), 1 << 62, KEY)
    assert known[0] < horizon


def test_what_the_config_asks_for() -> None:
    assert OrderConfig().order() == BlockShuffle(256, 512, "feistel")
    assert OrderConfig(shuffle=True, permutation_type="linear").order() == FullShuffle("linear")
    assert OrderConfig(shuffle=False).order() == InOrder()
    assert OrderConfig(shuffle=1000).order() == EraShuffle(1000)
    blocks = BlockShuffleConfig(io_block_size=8, window_blocks=2, perm_type="linear")
    assert OrderConfig(shuffle=blocks).order() == BlockShuffle(8, 2, "linear")


@pytest.mark.parametrize("shuffle", [0, -5, BlockShuffleConfig(io_block_size=0), BlockShuffleConfig(window_blocks=-1)])
def test_sizes_below_one_are_refused(shuffle: int | BlockShuffleConfig) -> None:
    with pytest.raises(RefusedError, match="needed 1 or more"):
        OrderConfig(shuffle=shuffle).order()


@given(order=orders)
def test_an_order_survives_the_record_of_a_run(order: AnyOrder) -> None:
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(order)), AnyOrder) == order


def test_these_orders_never_change() -> None:
    """Golden: a run that is resumed with a newer version must see the same order."""
    positions = np.array([0, 1, 2, 999, 1000, 123_456_789])
    for order, golden in GOLDEN:
        assert order.indices(positions, 1000, root_key(5, "shuffle", "golden")).tolist() == golden, order


GOLDEN: list[tuple[AnyOrder, list[int]]] = [
    (FullShuffle(), [498, 833, 410, 138, 56, 518]),
    (FullShuffle("linear"), [490, 139, 788, 841, 323, 686]),
    (EraShuffle(300), [33, 67, 87, 946, 223, 816]),
    (BlockShuffle(16, 8), [273, 280, 742, 998, 162, 17]),
]
