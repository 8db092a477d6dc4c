"""Batches are a pure function of the step: resumed, split over processes, with more datasets, always the same."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_caches import CacheWriter, MakeCache, numbered_documents

from ponente.batches.batch import Batch
from ponente.batches.config import MixtureConfig
from ponente.batches.dataset import held_out_rows
from ponente.batches.order import BlockShuffleConfig
from ponente.batches.packing import packed
from ponente.batches.rows import Packing, RowPolicy
from ponente.batches.schedule import BatchSchedule, BatchStage
from ponente.batches.shape import BatchShape
from ponente.batches.stream import BatchStream
from ponente.batches.training import RowSource, evaluation_stream, held_out_stream, training_data
from ponente.config.errors import RefusedError

SHAPE = BatchShape(length=8, max_documents=6)
SMALL_BLOCKS = BlockShuffleConfig(io_block_size=4, window_blocks=3)
slow = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
shuffles = st.sampled_from([True, False, 5, SMALL_BLOCKS])
policies = st.sampled_from([RowPolicy(), RowPolicy(packing="packed"), RowPolicy(packing="single", over_length="drop")])
LENGTHS = {"web": [5, 9, 3, 20, 1, 8, 8, 2, 7, 30, 4, 4], "code": [40, 3, 9, 9], "books": [90, 17, 5]}


def stream_of(
    make_cache: MakeCache,
    config: MixtureConfig | None = None,
    *,
    names: Sequence[str] = ("web", "code"),
    policy: RowPolicy | None = None,
    batch_size: int | Sequence[BatchStage] = 4,
    seed: int = 0,
) -> BatchStream:
    sources = {
        name: RowSource(cache=make_cache(LENGTHS[name]), policy=policy or RowPolicy(over_length="split"))
        for name in names
    }
    schedule = BatchSchedule.of(batch_size)
    return training_data(config or MixtureConfig(), sources, schedule, SHAPE, seed).stream


def same(left: Batch, right: Batch) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


def rows_seen(stream: BatchStream, dataset: int, positions: Sequence[int]) -> list[int]:
    return stream.datasets[dataset].row_numbers(np.array(positions)).tolist()


@slow
@given(shuffle=shuffles, policy=policies, start=st.integers(0, 60))
def test_a_resumed_run_sees_the_batches_of_an_uninterrupted_one(
    make_cache: MakeCache, shuffle: bool | int | BlockShuffleConfig, policy: RowPolicy, start: int
) -> None:
    config = MixtureConfig(shuffle=shuffle, train_weights={"web": 3.0, "code": 1.0}, mixture_block_size=16)
    whole = stream_of(make_cache, config, policy=policy)
    for step in range(0, start + 1):
        expected = whole.batch(step)
    assert same(stream_of(make_cache, config, policy=policy).batch(start), expected)


@slow
@given(shuffle=shuffles, step=st.integers(0, 10**6))
def test_one_two_and_four_processes_see_the_same_global_batches(
    make_cache: MakeCache, shuffle: bool | int | BlockShuffleConfig, step: int
) -> None:
    config = MixtureConfig(shuffle=shuffle, mixture_block_size=16)
    whole = stream_of(make_cache, config, batch_size=8).batch(step)
    for processes in (2, 4):
        parts = [
            stream_of(make_cache, config, batch_size=8).batch(step, rows=np.array_split(np.arange(8), processes)[one])
            for one in range(processes)
        ]
        assert same(Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))), whole)


@slow
@given(shuffle=shuffles, index=st.integers(0, 10**9))
def test_an_example_is_the_row_of_the_batch_that_holds_it(
    make_cache: MakeCache, shuffle: bool | int | BlockShuffleConfig, index: int
) -> None:
    stream = stream_of(make_cache, MixtureConfig(shuffle=shuffle, mixture_block_size=16))
    whole = stream.batch(index // 4)
    assert same(stream.example(index), Batch(*(array[index % 4 : index % 4 + 1] for array in whole)))


@pytest.mark.parametrize(
    ("documents", "packing", "told"),
    [
        ([4, 5, 4], "single", "46% of the rows of web is padding"),  # 13 of 24 tokens
        ([SHAPE.length + 1] * 3, "single", None),
        ([4, 4, 4, 4], "packed", None),
        ([4, 5, 4], "concatenated", None),
    ],
)
def test_rows_that_are_mostly_padding_are_told(
    documents: list[int], packing: Packing, told: str | None, make_cache: MakeCache, caplog: pytest.LogCaptureFixture
) -> None:
    source = RowSource(cache=make_cache(documents), policy=RowPolicy(packing=packing, over_length="error"))
    training_data(MixtureConfig(), {"web": source}, BatchSchedule.of(2), SHAPE, 0)
    warnings = [record.getMessage() for record in caplog.records if "padding" in record.getMessage()]
    assert [told in one for one in warnings] == ([True] if told else [])


@slow
@given(shuffle=st.sampled_from([True, 5, SMALL_BLOCKS]), positions=st.lists(st.integers(0, 500), min_size=1))
def test_adding_a_dataset_changes_the_order_of_no_other(
    make_cache: MakeCache, shuffle: bool | int | BlockShuffleConfig, positions: list[int]
) -> None:
    few = stream_of(make_cache, MixtureConfig(shuffle=shuffle))
    more = stream_of(make_cache, MixtureConfig(shuffle=shuffle), names=["books", "web", "code"])
    assert rows_seen(few, 0, positions) == rows_seen(more, 1, positions)
    assert rows_seen(few, 1, positions) == rows_seen(more, 2, positions)


def test_epochs_agree_in_content_and_differ_in_order_and_so_do_seeds(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, MixtureConfig(shuffle=True), names=["web"])
    length = stream.datasets[0].length
    epochs = [rows_seen(stream, 0, range(number * length, (number + 1) * length)) for number in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
    other = stream_of(make_cache, MixtureConfig(shuffle=True), names=["web"], seed=1)
    assert rows_seen(other, 0, range(length)) != epochs[0]


@slow
@given(policy=policies, shuffle=shuffles)
def test_an_epoch_has_every_token_that_the_packing_keeps_once(
    make_cache: MakeCache, policy: RowPolicy, shuffle: bool | int | BlockShuffleConfig
) -> None:
    stream = stream_of(make_cache, MixtureConfig(shuffle=shuffle), names=["web"], policy=policy, batch_size=1)
    length = stream.datasets[0].length
    seen = [token for step in range(length) for token in stream.batch(step).tokens_BS.ravel().tolist() if token]
    documents = numbered_documents(LENGTHS["web"])
    longest = 9 if policy.packing == "single" else 10**9
    inputs = [document[:8] if policy.packing == "single" else document for document in documents]
    assert sorted(seen) == [
        token for kept, whole in zip(inputs, documents, strict=True) if len(whole) <= longest for token in kept
    ]


def test_batch_sizes_follow_their_schedule(make_cache: MakeCache) -> None:
    stages = [BatchStage(start=0, value=2), BatchStage(start=3, value=5)]
    scheduled = stream_of(make_cache, batch_size=stages)
    plain = stream_of(make_cache, batch_size=1)
    rows = [row for step in range(6) for row in scheduled.batch(step).tokens_BS.tolist()]
    assert [len(scheduled.batch(step).tokens_BS) for step in range(6)] == [2, 2, 2, 5, 5, 5]
    assert rows == [plain.batch(step).tokens_BS[0].tolist() for step in range(21)]


def test_weights_that_change_at_a_step_change_there(make_cache: MakeCache) -> None:
    config = MixtureConfig(train_weights=[(0, {"web": 1.0}), (3, {"code": 1.0})], mixture_block_size=16)
    stream = stream_of(make_cache, config)
    assert [set(stream.origin(step).dataset.tolist()) for step in (2, 3)] == [{0}, {1}]
    assert stream.origin(3).position.tolist() == [0, 1, 2, 3]


def test_a_weight_of_zero_is_not_trained_on(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, MixtureConfig(train_weights={"web": 1.0, "code": 0.0}))
    assert [dataset.name for dataset in stream.datasets] == ["web"]


def test_a_stream_that_stops_pads_its_last_batch_and_refuses_the_step_after(make_cache: MakeCache) -> None:
    config = MixtureConfig(stop_strategy="first_exhausted", shuffle=False)
    stream = stream_of(make_cache, config, names=["web"])
    assert (stream.datasets[0].length, stream.length, stream.steps) == (13, 13, 4)
    assert stream.origin(3).dataset.tolist() == [0, -1, -1, -1]
    assert stream.batch(3).loss_weights_BS[1:].sum() == 0
    with pytest.raises(RefusedError, match="found step 4 asked of data that lasts 4 steps"):
        stream.batch(4)


def test_epochs_and_tokens_become_steps(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, names=["web"])
    assert [stream.steps_for_epochs(epochs) for epochs in (1, 2, 4)] == [4, 7, 13]  # 13, 26 and 52 rows, 4 a step
    assert [stream.steps_for_tokens(tokens) for tokens in (1, 32, 33, 320)] == [1, 1, 2, 10]
    seen = np.concatenate([stream.origin(step).position for step in range(4)])
    assert set(range(13)) <= set(seen.tolist())
    assert stream_of(make_cache).steps_for_epochs(2) == 11  # 13 rows of web and 8 of code, twice


def test_held_out_rows_are_never_trained_on_and_are_all_evaluated(make_cache: MakeCache) -> None:
    config = MixtureConfig(num_validation_sequences={"web": 4})
    stream = stream_of(make_cache, config, names=["web"])
    assert stream.datasets[0].length == 9
    trained = set(rows_seen(stream, 0, range(50)))
    source = RowSource(cache=make_cache(LENGTHS["web"]), policy=RowPolicy())
    evaluated = held_out_stream(config, "web", source, 3, SHAPE, seed=0)
    assert (evaluated.length, evaluated.steps) == (4, 2)
    firsts = {int(row[0]) for step in range(2) for row in evaluated.batch(step).tokens_BS if row[0]}
    held_out = {(first - 1) // 8 for first in firsts}
    assert len(held_out) == 4
    assert trained | held_out == set(range(13))
    assert not trained & held_out
    with pytest.raises(RefusedError, match="num_validation_sequences: 13 for web, which has 13 rows; needed fewer"):
        stream_of(make_cache, MixtureConfig(num_validation_sequences={"web": 13}), names=["web"])


def test_an_evaluation_sees_each_row_once_in_order(make_cache: MakeCache) -> None:
    source = RowSource(cache=make_cache(LENGTHS["code"]), policy=RowPolicy())
    stream = evaluation_stream("code", source, 3, SHAPE)
    seen = np.concatenate([stream.batch(step).tokens_BS for step in range(stream.steps or 0)]).ravel()
    assert seen[:61].tolist() == list(range(1, 62))
    assert not seen[61:].any()


def test_a_simulated_run_repeats_a_part_as_often_as_the_large_run_would(make_cache: MakeCache) -> None:
    config = MixtureConfig(target_budget=1000, experiment_budget=400)
    stream = stream_of(make_cache, config, names=["web"])
    part = rows_seen(stream, 0, range(5))
    assert stream.datasets[0].length == 5  # of 13
    assert part != list(range(5))
    for epoch in range(1, 4):
        again = rows_seen(stream, 0, range(epoch * 5, epoch * 5 + 5))
        assert sorted(again) == sorted(part)


def test_a_limit_in_batches_is_a_limit_of_rows(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, MixtureConfig(max_train_batches={"web": 2}))
    assert [dataset.length for dataset in stream.datasets] == [8, 8]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MixtureConfig(train_weights={"wbe": 1.0}), r"found data.train_weights.wbe; needed one .*web, code. Write web"),
        (MixtureConfig(train_weights={"web": -1.0}), "needed a number from 0 to"),
        (MixtureConfig(train_weights={"web": 0.0}), "without one above 0 from step 0 on"),
        (MixtureConfig(train_weights=[(5, {"web": 1.0})]), "needed the first from 0"),
        (MixtureConfig(num_validation_sequences={"cod": 1}), "found data.num_validation_sequences.cod"),
        (MixtureConfig(max_train_batches={"web": 0}), "found data.max_train_batches.web: 0; needed 1 or more"),
        (MixtureConfig(target_budget=5), "needed both, in tokens"),
        (MixtureConfig(target_budget=5, experiment_budget=6), "the target the larger"),
        (MixtureConfig(target_budget=5, experiment_budget=4, max_train_batches={"web": 1}), "needed one of them"),
        (MixtureConfig(mixture_block_size=0), "found data.mixture_block_size: 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_key(
    make_cache: MakeCache, config: MixtureConfig, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        stream_of(make_cache, config)


def test_while_a_cache_grows_batches_come_by_eras_and_are_those_of_the_finished_one(tmp_path: Path) -> None:
    documents = numbered_documents([11] * 40)  # 55 rows of 8
    config = MixtureConfig(shuffle=10)
    writer = CacheWriter(tmp_path / "growing")
    writer.add(documents[:10])
    source = RowSource(cache=writer.open(), policy=RowPolicy())
    data = training_data(config, {"web": source}, BatchSchedule.of(5), SHAPE, 0)
    early = [data.stream.batch(step) for step in range(2)]  # 110 tokens are there: 13 rows, the first era of 10

    def go_on() -> None:
        time.sleep(0.5)
        writer.add(documents[10:])
        writer.finish()

    thread = threading.Thread(target=go_on)
    thread.start()
    later = [data.stream.batch(step) for step in range(2, 20)]  # waits; 11 steps are an epoch
    thread.join()
    finished = RowSource(cache=writer.open(), policy=RowPolicy())
    whole = training_data(config, {"web": finished}, BatchSchedule.of(5), SHAPE, 0)
    assert all(same(batch, whole.stream.batch(step)) for step, batch in enumerate([*early, *later]))


def test_whoever_waits_for_a_build_that_failed_gets_its_error(tmp_path: Path) -> None:
    writer = CacheWriter(tmp_path / "growing")
    writer.add(numbered_documents([30]))

    def failed() -> None:
        raise RuntimeError("the build failed")

    source = RowSource(cache=writer.open(), policy=RowPolicy(), on_wait=failed)
    stream = training_data(MixtureConfig(shuffle=2), {"web": source}, BatchSchedule.of(2), SHAPE, 0).stream
    assert stream.batch(0).tokens_BS.any()
    with pytest.raises(RuntimeError, match="the build failed"):
        stream.batch(1)


def test_the_order_does_not_depend_on_whether_a_cache_is_whole_and_is_kept(tmp_path: Path) -> None:
    writer = CacheWriter(tmp_path / "growing")
    writer.add(numbered_documents([30]))

    def order(**config: int) -> dict[str, dict[str, object]]:
        source = RowSource(cache=writer.open(), policy=RowPolicy())
        data = training_data(MixtureConfig(**config), {"web": source}, BatchSchedule.of(2), SHAPE, 0)
        return msgspec.json.decode(msgspec.json.encode(data.record()), type=dict[str, dict[str, object]])

    growing = order(), order(shuffle=1000)
    writer.finish()
    assert growing == (order(), order(shuffle=1000))
    record = growing[1]
    assert record == {"web": {"kind": "era", "era": 1000, "permutation": "feistel"}}
    source = RowSource(cache=writer.open(), policy=RowPolicy())
    resumed = training_data(MixtureConfig(), {"web": source}, BatchSchedule.of(2), SHAPE, 0, recorded=record)
    assert resumed.record() == record
    fresh = training_data(MixtureConfig(), {"web": source}, BatchSchedule.of(2), SHAPE, 0)
    assert fresh.record()["web"]["kind"] == "block"
    with pytest.raises(RefusedError, match=r"found data.shuffle: True and .*, but the run that is resumed reads web"):
        training_data(MixtureConfig(shuffle=True), {"web": source}, BatchSchedule.of(2), SHAPE, 0, recorded=record)


def test_an_empty_segment_among_others_changes_nothing(tmp_path: Path) -> None:
    documents = numbered_documents([9, 8, 30, 5])
    streams = []
    for name, with_empty in (("plain", False), ("holes", True)):
        writer = CacheWriter(tmp_path / name)
        for document in documents:
            writer.add([document])
            if with_empty:
                writer.add([])
        writer.finish()
        source = RowSource(cache=writer.open(), policy=RowPolicy())
        streams.append(training_data(MixtureConfig(), {"web": source}, BatchSchedule.of(20), SHAPE, 0).stream)
    for step in range(5):  # 7 rows, so each comes several times in a batch
        assert same(*(stream.batch(step) for stream in streams))


def test_rows_and_examples_that_there_are_not_are_refused(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, MixtureConfig(stop_strategy="first_exhausted"), names=["web"])
    for rows in ([4], [-1], [0, 7]):
        with pytest.raises(RefusedError, match="asked of a batch of 4; needed rows from 0 to 3"):
            stream.batch(0, rows=rows)
    assert same(stream.batch(0, rows=range(4)), stream.batch(0))
    with pytest.raises(RefusedError, match="found step -1; needed 0 or more"):
        stream.batch(-1)
    for index in (-1, 13):
        with pytest.raises(RefusedError, match=f"found example {index} asked of a mixture of 13"):
            stream.example(index)


def test_a_simulated_part_is_exact_in_whole_numbers(make_cache: MakeCache) -> None:
    assert MixtureConfig(target_budget=100, experiment_budget=29).simulated_rows(100) == 29


def test_these_parts_and_packings_never_change(make_cache: MakeCache) -> None:
    """Golden: a run that is resumed with a newer version must neither train on what was held out nor pack otherwise."""
    assert held_out_rows("web", 3, 1000, 5).tolist() == [157, 278, 504, 676, 832]
    part = stream_of(make_cache, MixtureConfig(max_train_batches={"web": 1}), names=["web"])
    assert rows_seen(part, 0, range(8)) == [11, 7, 6, 12, 11, 6, 7, 12]
    starts, stops = packed(np.cumsum([0, 3, 4, 9, 2, 2, 30, 1, 6]), 10, 3, "split")
    assert (starts.tolist(), stops.tolist()) == ([0, 7, 16, 20, 30, 40, 50], [7, 16, 20, 30, 40, 50, 57])


def test_many_threads_may_read_one_cache(make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponente.store.token_cache.open_segments._ROW_STARTS", 5)  # they drop each other's
    stream = stream_of(make_cache, names=["web", "code", "books"], batch_size=8)
    expected = [stream.batch(step) for step in range(20)]
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(step for step in range(20) if not same(stream.batch(step), expected[step]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@slow
@given(shuffle=shuffles, epoch=st.integers(1, 10**6))
def test_shifted_epochs_cut_the_same_tokens_at_other_places(
    make_cache: MakeCache, shuffle: bool | int | BlockShuffleConfig, epoch: int
) -> None:
    plain = stream_of(make_cache, MixtureConfig(shuffle=shuffle), names=["web"]).datasets[0]
    shifted = stream_of(make_cache, MixtureConfig(shuffle=shuffle, shift_epochs=True), names=["web"]).datasets[0]
    length, tokens = shifted.length, plain.rows.cache.tokens
    assert length == plain.length - 1
    first = shifted.spans(np.arange(length))[0]
    assert sorted(first.tolist()) == [row * SHAPE.length for row in range(length)]
    starts, stops = shifted.spans(np.arange(length) + epoch * length)
    (offset,) = {start % SHAPE.length for start in starts.tolist()}
    assert sorted(starts.tolist()) == [row * SHAPE.length + offset for row in range(length)]
    assert (stops > starts).all()
    assert stops.max() <= tokens


def test_epochs_are_shifted_differently_and_not_where_rows_are_held_out(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache, MixtureConfig(shift_epochs=True), names=["web"])
    dataset = stream.datasets[0]
    starts = dataset.spans(np.arange(40) * dataset.length)[0]
    assert len(set((starts % SHAPE.length).tolist())) == SHAPE.length
    packed_rows = stream_of(make_cache, MixtureConfig(shift_epochs=True), policy=RowPolicy(packing="packed"))
    plain = stream_of(make_cache, MixtureConfig(), policy=RowPolicy(packing="packed"))
    assert same(packed_rows.batch(1000), plain.batch(1000))
    with pytest.raises(RefusedError, match=r"found data\.shift_epochs beside data\.num_validation_sequences"):
        stream_of(make_cache, MixtureConfig(shift_epochs=True, num_validation_sequences={"web": 2}), names=["web"])
