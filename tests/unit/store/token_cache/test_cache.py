"""Reading token caches: finished and growing, row by row and as one line of tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.store.formats import FormatError
from ponente.store.sources.source import BadRow
from ponente.store.tensors import TensorError, write_context
from ponente.store.token_cache.cache import TokenCache, open_cache, open_growing_cache
from ponente.store.token_cache.ledger import (
    CacheError,
    CacheLedger,
    CachePlan,
    SegmentRecord,
    TokenizerRecord,
    write_ledger,
    write_plan,
)
from ponente.store.token_cache.segment import SegmentNote, segment_name, write_segment

TOKENIZER = TokenizerRecord(name="tiny", fingerprint="f" * 64, vocab_size=1000)
COLUMNS = {"input_ids": "uint16", "loss_mask": "uint8"}
Rows = list[list[int]]


def begin(cache: Path, units: int) -> None:
    plan = CachePlan(
        tokenizer=TOKENIZER,
        row_format={"type": "text"},
        columns=COLUMNS,
        sources=[],
        source_identity={},
        source_config={},
        units=[{} for _ in range(units)],
        segment_tokens=100,
    )
    write_plan(str(cache), plan)


def publish(cache: Path, unit: int, position: int, rows: Rows, *, is_last: bool) -> SegmentRecord:
    ids = np.array([token for row in rows for token in row], "uint16")
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype("int64")
    note = SegmentNote(rows=len(rows), tokens=len(ids), next_row=0, is_last=is_last, empty_rows=0, bad_rows=0)
    name = segment_name(unit, position)
    columns = {"input_ids": ids, "loss_mask": (ids % 2).astype("uint8")}
    write_segment(str(cache), name, columns, offsets, note, [], write_context())
    return SegmentRecord(name, len(rows), len(ids))


def finish(cache: Path, segments: list[SegmentRecord]) -> None:
    ledger = CacheLedger(
        tokenizer=TOKENIZER,
        row_format={"type": "text"},
        columns=COLUMNS,
        rows=sum(segment.rows for segment in segments),
        tokens=sum(segment.tokens for segment in segments),
        empty_rows=0,
        bad_rows=0,
        sources=[],
        source_identity={},
        source_config={},
        segments=segments,
    )
    write_ledger(str(cache), ledger)


def make(cache: Path, parts: list[Rows]) -> TokenCache:
    begin(cache, len(parts))
    finish(cache, [publish(cache, unit, 0, rows, is_last=True) for unit, rows in enumerate(parts)])
    return open_cache(str(cache))


rows_strategy = st.lists(st.lists(st.integers(0, 999), max_size=20), max_size=6)


@given(parts=st.lists(rows_strategy, min_size=1, max_size=4), data=st.data())
@settings(max_examples=25, deadline=None)
def test_rows_and_spans_are_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[Rows], data: st.DataObject
) -> None:
    cache = make(tmp_path_factory.mktemp("cache") / "c", parts)
    rows = [row for part in parts for row in part]
    flat = [token for row in rows for token in row]
    assert (cache.rows, cache.tokens) == (len(rows), len(flat))
    for index, row in enumerate(rows):
        found = cache.row(index)
        assert found["input_ids"].tolist() == row
        assert found["loss_mask"].tolist() == [token % 2 for token in row]
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert cache.read(start, stop).tolist() == flat[start:stop]
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    ends = np.cumsum([0, *map(len, rows)])
    expected = ends[first : last + 1].tolist() if last > first else []
    assert cache.row_offsets(first, last).tolist() == expected


def test_plain_zarr_reads_a_segment(tmp_path: Path) -> None:
    make(tmp_path / "c", [[[1, 2, 3], [4, 5]]])
    group = zarr.open_group(str(tmp_path / "c" / "segments" / "000000-0000"), mode="r")
    offsets = group["offsets"][:]
    assert group["input_ids"][offsets[1] : offsets[2]].tolist() == [4, 5]
    assert group.attrs["ponente"]["tokens"] == 5


def test_what_lies_outside_is_refused(tmp_path: Path) -> None:
    cache = make(tmp_path / "c", [[[1, 2, 3]]])
    for ask in (lambda: cache.read(0, 4), lambda: cache.read(-1, 2), lambda: cache.row(1), lambda: cache.row(-1)):
        with pytest.raises(IndexError, match="which has"):
            ask()


def test_a_growing_cache_shows_what_is_published_without_a_gap(tmp_path: Path) -> None:
    begin(tmp_path, 3)
    cache = open_growing_cache(str(tmp_path))
    assert (cache.rows, cache.is_finished) == (0, False)
    records = {(1, 0): publish(tmp_path, 1, 0, [[10, 11]], is_last=True)}
    cache.refresh()
    assert cache.rows == 0  # unit 0 is missing
    records[0, 0] = publish(tmp_path, 0, 0, [[1], [2]], is_last=False)
    cache.refresh()
    assert cache.read(0, cache.tokens).tolist() == [1, 2]
    records[0, 1] = publish(tmp_path, 0, 1, [[3]], is_last=True)
    cache.refresh()
    assert cache.read(0, cache.tokens).tolist() == [1, 2, 3, 10, 11]
    records[2, 0] = publish(tmp_path, 2, 0, [], is_last=True)
    finish(tmp_path, [records[key] for key in sorted(records)])
    cache.refresh()
    assert cache.is_finished
    assert cache.read(0, cache.tokens).tolist() == [1, 2, 3, 10, 11]


def test_an_unfinished_cache_is_not_opened_as_a_finished_one(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no token cache"):
        open_cache(str(tmp_path))
    begin(tmp_path, 1)
    publish(tmp_path, 0, 0, [[1]], is_last=True)
    with pytest.raises(CacheError, match="unfinished"):
        open_cache(str(tmp_path))


def test_a_changed_ledger_is_found(tmp_path: Path) -> None:
    make(tmp_path / "c", [[[1, 2, 3]]])
    ledger = tmp_path / "c" / "ledger.json"
    ledger.write_text(ledger.read_text().replace('"rows": 1', '"rows": 2'))
    with pytest.raises(FormatError, match="changed since it was written"):
        open_cache(str(tmp_path / "c"))


def test_a_cache_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "c", [[[1]]])
    marker = tmp_path / "c" / "finished.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 99}))
    with pytest.raises(FormatError, match="99"):
        open_cache(str(tmp_path / "c"))


def test_a_column_that_is_too_short_is_found(tmp_path: Path) -> None:
    make(tmp_path / "c", [[[1, 2, 3]]])
    other = make(tmp_path / "d", [[[1, 2]]])
    segment = "segments/000000-0000/input_ids"
    for name in ("zarr.json", "c/0"):
        (tmp_path / "c" / segment / name).write_bytes((Path(other.path) / segment / name).read_bytes())
    with pytest.raises(TensorError, match="found 2 elements in input_ids"):
        open_cache(str(tmp_path / "c")).read(0, 3)


def test_bad_rows_lie_beside_the_segment(tmp_path: Path) -> None:
    note = SegmentNote(rows=0, tokens=0, next_row=1, is_last=True, empty_rows=0, bad_rows=1)
    bad = BadRow(path="x.jsonl", line=1, error="broken", excerpt="{", row=0)
    columns = {"input_ids": np.empty(0, "uint16")}
    write_segment(str(tmp_path), "000000-0000", columns, np.zeros(1, "int64"), note, [bad], write_context())
    line = (tmp_path / "segments" / "000000-0000" / "quarantine.jsonl").read_text()
    assert json.loads(line) == {"path": "x.jsonl", "line": 1, "error": "broken", "excerpt": "{", "row": 0}


def test_opening_looks_at_no_segment_that_is_not_read(tmp_path: Path) -> None:
    count = 1000
    begin(tmp_path, count)
    one = publish(tmp_path, 700, 0, [[1, 2], [3]], is_last=True)  # the others are not there at all
    finish(tmp_path, [SegmentRecord(segment_name(unit, 0), one.rows, one.tokens) for unit in range(count)])
    cache = open_cache(str(tmp_path))
    assert cache.tokens == 3 * count
    assert cache.read(2100, 2103).tolist() == [1, 2, 3]
    assert cache.row(1401)["input_ids"].tolist() == [3]
    with pytest.raises(TensorError, match="000699-0000"):
        cache.read(2099, 2101)
