"""Packing: whole documents, none lost, none repeated, no row too full, and the policy for those that do not fit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_caches import MakeCache

from ponente.batches.packing import OverLength, packed, packing_of
from ponente.config.errors import RefusedError
from ponente.store.token_cache.packing import PACKINGS

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def offsets_of(document_lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *document_lengths])


def tokens_of(spans: tuple[np.ndarray, np.ndarray]) -> list[int]:
    return [token for start, stop in zip(*spans, strict=True) for token in range(start, stop)]


@given(lengths=lengths, length=st.integers(1, 50), most=st.integers(1, 9))
def test_splitting_loses_and_repeats_no_token(lengths: list[int], length: int, most: int) -> None:
    starts, stops = packed(offsets_of(lengths), length, most, "split")
    assert tokens_of((starts, stops)) == list(range(sum(lengths)))
    assert (stops - starts <= length).all()


@given(lengths=lengths, length=st.integers(1, 50), most=st.integers(1, 9), over=st.sampled_from(["drop", "truncate"]))
def test_documents_that_fit_are_whole_and_the_others_as_asked(
    lengths: list[int], length: int, most: int, over: OverLength
) -> None:
    offsets = offsets_of(lengths)
    spans = packed(offsets, length, most, over)
    kept = {"drop": 0, "truncate": length}[over]
    expected = [
        token
        for start, size in zip(offsets[:-1].tolist(), lengths, strict=True)
        for token in range(start, start + (size if size <= length else kept))
    ]
    assert tokens_of(spans) == expected
    assert (spans[1] - spans[0] <= length).all()


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60), most=st.integers(1, 9))
def test_a_row_takes_what_fits_and_no_more_documents_than_allowed(lengths: list[int], most: int) -> None:
    offsets = offsets_of(lengths)
    starts, stops = packed(offsets, 20, most, "error")
    counts = np.searchsorted(offsets, stops) - np.searchsorted(offsets, starts)
    assert (counts <= most).all()
    following = [lengths[int(np.searchsorted(offsets, stop))] for stop in stops[:-1]]
    for size, count, next_length in zip(stops - starts, counts, following, strict=False):
        assert size + next_length > 20 or count == most  # the next document would not have fitted


def test_a_document_that_is_too_long_is_an_error_that_names_it() -> None:
    with pytest.raises(RefusedError, match=r"found 2 documents of web longer than a row of 10 .*number 3, has 12"):
        packed(offsets_of([4, 11, 3, 12]), 10, 8, "error", "web")


def test_a_packing_is_stored_and_keyed_by_cache_length_and_policy(make_cache: MakeCache) -> None:
    cache = make_cache([3, 4, 9, 2, 2, 30, 1])
    first = packing_of(cache, 10, 8, "split")
    stored = sorted((Path(cache.path) / PACKINGS).iterdir())
    assert len(stored) == 1
    again = packing_of(cache, 10, 8, "split")
    assert [part.tolist() for part in again] == [part.tolist() for part in first]
    (stored[0] / "starts" / "zarr.json").unlink()
    with pytest.raises(Exception, match="missing or damaged"):  # it is read, not made again
        packing_of(cache, 10, 8, "split")
    for length, most, over in [(11, 8, "split"), (10, 7, "split"), (10, 8, "drop")]:
        packing_of(cache, length, most, over)
    assert len(list((Path(cache.path) / PACKINGS).iterdir())) == 4


def test_a_cache_that_can_only_be_read_is_packed_all_the_same(
    make_cache: MakeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = make_cache([3, 4, 9])

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("ponente.batches.packing.write_packing", refuse)
    assert [part.tolist() for part in packing_of(cache, 10, 8, "split")] == [[0, 7], [7, 16]]
    assert "could not be stored" in caplog.text
