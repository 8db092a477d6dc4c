"""Token caches with chosen ids, written as the build writes them, without a tokenizer."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ponente.store.tensors import write_context
from ponente.store.token_cache.cache import TokenCache, open_cache, open_growing_cache
from ponente.store.token_cache.ledger import (
    CacheLedger,
    CachePlan,
    SegmentRecord,
    TokenizerRecord,
    write_ledger,
    write_plan,
)
from ponente.store.token_cache.segment import SegmentNote, segment_name, write_segment

MakeCache = Callable[[Sequence[int]], TokenCache]

_TOKENIZER = TokenizerRecord(name="passthrough", fingerprint="none", vocab_size=1 << 16)


class CacheWriter:
    """Writes a cache segment by segment, each a unit of its own."""

    def __init__(self, path: Path, columns: dict[str, str] | None = None, units: int = 1_000) -> None:
        self.path = str(path)
        self._columns = columns or {"input_ids": "uint16"}
        self._segments: list[SegmentRecord] = []
        plan = CachePlan(
            tokenizer=_TOKENIZER,
            row_format={"type": "prebuilt"},
            columns=self._columns,
            sources=[],
            source_identity={},
            source_config={},
            units=[{"number": number} for number in range(units)],
            segment_tokens=1,
        )
        write_plan(self.path, plan)

    def add(self, documents: Sequence[Sequence[int]], **others: Sequence[Sequence[float]]) -> None:
        """Publishes a segment with these documents, and the other columns' values for them."""
        lengths = [len(document) for document in documents]
        values = {"input_ids": documents, **others}
        columns = {
            name: np.concatenate([np.empty(0, dtype), *(np.asarray(row, dtype) for row in values[name])])
            for name, dtype in self._columns.items()
        }
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows, tokens = len(documents), sum(lengths)
        note = SegmentNote(rows=rows, tokens=tokens, next_row=rows, is_last=True, empty_rows=0, bad_rows=0)
        name = segment_name(len(self._segments), 0)
        write_segment(self.path, name, columns, offsets, note, [], write_context())
        self._segments.append(SegmentRecord(name, rows, tokens))

    def finish(self) -> None:
        """Writes ledger and marker."""
        ledger = CacheLedger(
            tokenizer=_TOKENIZER,
            row_format={"type": "prebuilt"},
            columns=self._columns,
            rows=sum(segment.rows for segment in self._segments),
            tokens=sum(segment.tokens for segment in self._segments),
            empty_rows=0,
            bad_rows=0,
            sources=[],
            source_identity={},
            source_config={},
            segments=self._segments,
        )
        write_ledger(self.path, ledger)

    def open(self) -> TokenCache:
        """The cache as far as it is written."""
        return open_growing_cache(self.path)


def write_cache(path: Path, documents: Sequence[Sequence[int]], *, segment_rows: int = 7) -> TokenCache:
    """A finished cache of ids alone, in several segments."""
    writer = CacheWriter(path)
    for first in range(0, len(documents), segment_rows):
        writer.add(documents[first : first + segment_rows])
    writer.finish()
    return open_cache(str(path))


def numbered_documents(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths whose tokens are all different: 1, 2, 3 …"""
    ends = np.cumsum([0, *lengths]).tolist()
    return [list(range(start + 1, end + 1)) for start, end in pairwise(ends)]
