"""The arrays of a batch against a slow and plain reading of the same rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_caches import CacheWriter, MakeCache, numbered_documents, write_cache

from ponente.batches.batch import Batch, RowGroup, begin_batch
from ponente.batches.rows import RowPolicy, Rows, rows_of
from ponente.batches.shape import BatchShape
from ponente.config.errors import RefusedError
from ponente.store.token_cache.cache import open_cache

slow = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
document_lengths = st.lists(st.integers(1, 30), min_size=1, max_size=25)


def all_rows(rows: Rows, shape: BatchShape, rows_together: int | None = None) -> Batch:
    numbers = np.arange(rows.available)
    return begin_batch(shape, len(numbers), [RowGroup(rows, numbers, *rows.spans(numbers))]).finish(rows_together)


def documents_of(batch: Batch, row: int) -> list[list[int]]:
    """The tokens of each document of a row, padding included."""
    borders = np.flatnonzero(np.diff(batch.segment_ids_BS[row])) + 1
    return [document.tolist() for document in np.split(batch.tokens_BS[row], borders)]


@slow
@given(lengths=document_lengths, length=st.integers(2, 40))
def test_concatenated_rows_are_the_line_of_all_tokens(make_cache: MakeCache, lengths: list[int], length: int) -> None:
    rows = rows_of(make_cache(lengths), RowPolicy(), BatchShape(length=length, max_documents=64))
    batch = all_rows(rows, BatchShape(length=length, max_documents=64))
    total = sum(lengths)
    assert batch.tokens_BS.ravel()[:total].tolist() == list(range(1, total + 1))
    counted = batch.loss_weights_BS.astype(bool)
    assert batch.targets_BS[counted].tolist() == list(range(2, total + 1))  # each but the first is predicted once
    assert set(np.unique(batch.loss_weights_BS)) <= {0.0, 1.0}


@slow
@given(lengths=document_lengths, length=st.integers(2, 40), positions=st.sampled_from(["document", "row"]))
def test_segment_ids_and_positions_tell_the_same_documents(
    make_cache: MakeCache, lengths: list[int], length: int, positions: str
) -> None:
    shape = BatchShape(length=length, max_documents=64, positions=positions)
    batch = all_rows(rows_of(make_cache(lengths), RowPolicy(), shape), shape)
    borders = set(np.cumsum([0, *lengths]).tolist())
    for row in range(len(batch.tokens_BS)):
        known = min(length, sum(lengths) - row * length)
        segment, since = 0, 0
        for place in range(length):
            token = row * length + place
            if place and (place == known or (place < known and token in borders)):
                segment, since = segment + 1, place
            assert batch.segment_ids_BS[row, place] == segment
            assert batch.positions_BS[row, place] == (place - since if positions == "document" else place)
    assert batch.document_starts_BM.shape == (len(batch.tokens_BS), 0)  # nobody asked for tables


@slow
@given(lengths=document_lengths, length=st.integers(2, 40), groups=st.integers(1, 3), together=st.integers(1, 3))
def test_tables_list_the_documents_of_rows_that_are_computed_together(
    make_cache: MakeCache, lengths: list[int], length: int, groups: int, together: int
) -> None:
    shape = BatchShape(length=length, max_documents=64)
    rows = rows_of(make_cache(lengths), RowPolicy(), shape)
    numbers = np.arange(min(rows.available, groups * together))  # what is missing is padding
    read = begin_batch(shape, groups * together, [RowGroup(rows, numbers, *rows.spans(numbers))])
    batch = read.finish(rows_together=together)
    width = batch.document_starts_BM.shape[1]
    most = 0
    for group in range(groups):
        here = slice(group * together, (group + 1) * together)
        ids = batch.segment_ids_BS[here] + 1000 * np.arange(together)[:, None]
        starts = np.flatnonzero(np.diff(ids.ravel(), prepend=-1)).tolist()
        found, sizes = batch.document_starts_BM[here].ravel(), batch.document_lengths_BM[here].ravel()
        assert found[: len(starts)].tolist() == starts
        assert sizes[: len(starts)].tolist() == np.diff([*starts, together * length]).tolist()
        assert (found[len(starts) :] == together * length).all()
        assert (sizes[len(starts) :] == 0).all()
        most = max(most, len(starts))
    assert width in (2, 4, 8, 16, 32, 64)
    assert width == 2 or (width // 2) * together < most  # half of it would not do


@slow
@given(lengths=document_lengths, length=st.integers(2, 40))
def test_packed_rows_never_predict_from_one_document_to_the_next(
    make_cache: MakeCache, lengths: list[int], length: int
) -> None:
    shape = BatchShape(length=length, max_documents=9)
    batch = all_rows(rows_of(make_cache(lengths), RowPolicy(packing="packed"), shape), shape)
    firsts = set((np.cumsum([0, *lengths]) + 1).tolist())
    predicted = batch.targets_BS[batch.loss_weights_BS > 0].tolist()
    assert predicted == [token for token in range(1, sum(lengths) + 1) if token not in firsts]
    assert (batch.segment_ids_BS < 9).all()


def test_one_document_a_row_may_have_one_token_more_than_the_row(make_cache: MakeCache) -> None:
    shape = BatchShape(length=8, max_documents=4)
    policy = RowPolicy(packing="single", over_length="error")
    batch = all_rows(rows_of(make_cache([9, 3, 8]), policy, shape), shape)
    assert batch.tokens_BS.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [10, 11, 12, 0, 0, 0, 0, 0], [13, 14, 15, 16, 17, 18, 19, 20]]  # fmt: skip  # noqa: E501
    assert batch.targets_BS[0].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert batch.loss_weights_BS.sum(axis=1).tolist() == [8, 2, 7]
    with pytest.raises(RefusedError, match="longer than a row of 9"):
        rows_of(make_cache([10]), policy, shape)


def test_rows_cut_from_the_line_of_all_tokens_hold_any_number_of_documents_apart(make_cache: MakeCache) -> None:
    shape = BatchShape(length=12, max_documents=3)
    batch = all_rows(rows_of(make_cache([2, 2, 2, 2, 4]), RowPolicy(), shape), shape, rows_together=1)
    assert batch.segment_ids_BS.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]]
    assert batch.document_starts_BM.tolist() == [[0, 2, 4, 6, 8, 12, 12, 12]]
    assert batch.document_lengths_BM.tolist() == [[2, 2, 2, 2, 4, 0, 0, 0]]


def test_batches_of_very_many_documents_a_row_have_no_tables(make_cache: MakeCache) -> None:
    shape = BatchShape(length=65, max_documents=3)
    for lengths, places in (([1] * 63 + [67], 64), ([1] * 64 + [66], 0)):  # 64 or 65 in the first row
        batch = all_rows(rows_of(make_cache(lengths), RowPolicy(), shape), shape, rows_together=1)
        assert batch.document_starts_BM.shape == (2, places)
        assert batch.segment_ids_BS.max() == (63 if places else 64)


def test_without_blocking_a_row_is_one_document(make_cache: MakeCache) -> None:
    shape = BatchShape(length=6, max_documents=8, blocks_documents=False)
    batch = all_rows(rows_of(make_cache([2, 3, 4]), RowPolicy(), shape), shape)
    assert documents_of(batch, 0) == [[1, 2, 3, 4, 5, 6]]
    assert documents_of(batch, 1) == [[7, 8, 9], [0, 0, 0]]  # padding stays apart


def test_masks_count_for_the_token_itself_and_weights_for_the_one_after(tmp_path: Path) -> None:
    for column, dtype, values, expected in [
        ("loss_mask", "uint8", [[0, 0, 1, 1], [0, 1, 0]], [[0, 1, 1, 0], [1, 0, 0, 0]]),
        ("loss_weights", "float32", [[0.5, 0, 2, 3], [0, 1, 0.25]], [[0.5, 0, 2, 0], [0, 1, 0, 0]]),
    ]:
        writer = CacheWriter(tmp_path / column, {"input_ids": "uint16", column: dtype})
        writer.add(numbered_documents([4, 3]), **{column: values})
        writer.finish()
        shape = BatchShape(length=4, max_documents=4)
        batch = all_rows(rows_of(open_cache(writer.path), RowPolicy(packing="packed"), shape), shape)
        assert batch.loss_weights_BS.tolist() == expected


def test_rows_that_nobody_has_are_padding(make_cache: MakeCache) -> None:
    shape = BatchShape(length=4, max_documents=4)
    rows = rows_of(make_cache([6]), RowPolicy(), shape)
    batch = begin_batch(shape, 3, [RowGroup(rows, np.array([1]), *rows.spans(np.array([1])))]).finish()
    assert batch.tokens_BS.tolist() == [[0] * 4, [5, 6, 0, 0], [0] * 4]
    assert batch.loss_weights_BS.tolist() == [[0] * 4, [1, 0, 0, 0], [0] * 4]
    assert batch.segment_ids_BS.tolist() == [[0] * 4, [0, 0, 1, 1], [0] * 4]


def test_dtypes_are_those_of_devices(tmp_path: Path) -> None:
    shape = BatchShape(length=4, max_documents=4)
    batch = all_rows(rows_of(write_cache(tmp_path / "c", [[60_000, 2]]), RowPolicy(), shape), shape)
    assert [array.dtype.name for array in batch] == ["int32", "int32", "float32"] + ["int32"] * 4
    assert batch.tokens_BS[0, 0] == 60_000


def test_an_unfinished_cache_cannot_be_packed(tmp_path: Path) -> None:
    writer = CacheWriter(tmp_path / "c")
    writer.add([[1, 2]])
    with pytest.raises(RefusedError, match="still being built; needed a finished cache to pack"):
        rows_of(writer.open(), RowPolicy(packing="packed"), BatchShape(length=4, max_documents=4))
