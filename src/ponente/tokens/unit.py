"""One unit of a source to segments of a cache, in a worker process.

In: a unit's index and description. Out: published segments. Segments are cut at the first row that fills them, whatever
the batches were, and each says at which row the next begins; so a unit that was cut off goes on after its last
published segment, and its bytes are the same as if it had never stopped.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.cluster.memory import return_free_memory, use_one_heap
from ponente.cluster.workers import report_counts
from ponente.config.errors import RefusedError
from ponente.store.redaction import Redactor
from ponente.store.sources.source import BadRow, RowBatch, SourceConfig
from ponente.store.tensors import write_context
from ponente.store.token_cache.segment import (
    SegmentNote,
    notes_of_unit,
    segment_name,
    write_segment,
)
from ponente.tokens.formats.format import INPUT_IDS, EncodedRows, Encoder, EncoderOptions, TokenFormat
from ponente.tokens.tokenizer import Tokenizer

_TRIM_UNITS = 8  # after every so many on average: what is given back must be fetched again


@dataclass(frozen=True, kw_only=True)
class UnitBuild:
    """Builds any unit of one cache; sent to worker processes, which load the tokenizer once each."""

    cache: str
    source: SourceConfig
    row_format: TokenFormat
    options: EncoderOptions
    tokenizer: Tokenizer
    threads: int  # that the encoder may use
    columns: dict[str, str]
    segment_tokens: int
    max_bad_records: int

    def __call__(self, shard: Mapping[str, Any]) -> dict[str, int]:
        """Publishes the segments of `{"index": …, "unit": …}` that are not there yet."""
        cutter = _SegmentCutter(self, shard["index"])
        source_bytes = 0
        if not cutter.is_done:
            for batch in self.source.read(shard["unit"], self.row_format.fields(), skip=cutter.next_row):
                source_bytes += batch.source_bytes
                cutter.append(batch, self._encode(batch.values))
                report_counts(documents=cutter.rows, tokens=cutter.tokens, bytes=source_bytes)
            cutter.finish()
        report_counts(documents=cutter.rows, tokens=cutter.tokens, bytes=self.source.unit_bytes(shard["unit"]))
        if shard["index"] % _TRIM_UNITS == 0:
            return_free_memory()
        return {"rows": cutter.rows, "tokens": cutter.tokens}

    @cached_property
    def _encode(self) -> Encoder:
        use_one_heap()
        os.environ["FASTOKENS_BPE_THREADS"] = str(self.threads)
        return self.row_format.encoder(self.tokenizer, self.options)

    @cached_property
    def buffers(self) -> "dict[str, _Buffer]":
        """Where the columns of one unit after the other are gathered."""
        return {column: _Buffer(dtype, self.segment_tokens) for column, dtype in self.columns.items()}

    @cached_property
    def context(self) -> ts.Context:
        """Where TensorStore writes from."""
        return write_context()


class _SegmentCutter:
    """Gathers encoded rows and publishes a segment whenever one is full."""

    def __init__(self, build: UnitBuild, unit: int) -> None:
        self._build = build
        self._unit = unit
        self._position = 0
        self._bad_total = 0
        self.next_row = 0
        self.rows = 0
        self.tokens = 0
        self.is_done = False
        self._take_published()
        self._columns = build.buffers
        for buffer in self._columns.values():
            buffer.drop(buffer.length)  # of a unit that failed
        self._lengths: list[NDArray[np.int64]] = []
        self._row_numbers: list[NDArray[np.int64]] = []
        self._empty: list[int] = []
        self._bad: list[BadRow] = []

    def _take_published(self) -> None:
        """Goes on after the segments that an earlier attempt published."""
        for _, note in notes_of_unit(self._build.cache, self._unit):
            self.rows += note.rows
            self.tokens += note.tokens
            self._bad_total += note.bad_rows
            self.next_row, self.is_done = note.next_row, note.is_last
            self._position += 1

    def append(self, batch: RowBatch, encoded: EncodedRows) -> None:
        """Takes the rows of a batch, then publishes what is full."""
        self._check(encoded, len(batch.rows))
        lengths, numbers = np.diff(encoded.offsets), np.asarray(batch.rows, np.int64)
        for bad in sorted([*batch.bad, *_unencoded(batch, encoded)], key=lambda bad: bad.row):
            self._set_aside(bad)
        present = lengths > 0
        empty = numbers[~present].tolist()
        self._empty += [
            row for index, row in zip(np.flatnonzero(~present), empty, strict=True) if index not in encoded.bad
        ]
        for column, buffer in self._columns.items():
            buffer.append(encoded.columns[column])
        self._lengths.append(lengths[present])
        self._row_numbers.append(numbers[present])
        self.rows += int(present.sum())
        self.tokens += int(encoded.offsets[-1])
        self.next_row = batch.next_row
        while self._columns[INPUT_IDS].length >= self._build.segment_tokens:
            self._cut()

    def _check(self, encoded: EncodedRows, rows: int) -> None:
        """Refuses what a format must not give: it would be stored as something else."""
        tokens, kind = int(encoded.offsets[-1]), type(self._build.row_format).__name__
        found = {column: len(values) for column, values in encoded.columns.items()}
        needed = dict.fromkeys(self._build.columns, tokens)
        if found != needed or len(encoded.offsets) != rows + 1:
            raise RefusedError(
                f"found columns of lengths {found} and {len(encoded.offsets)} offsets from {kind}; needed {needed} and "
                f"{rows + 1}. Correct the format."
            )
        ids, most = encoded.columns[INPUT_IDS], self._build.tokenizer.vocab_size
        if tokens and (int(ids.max()) >= most or (ids.dtype.kind != "u" and int(ids.min()) < 0)):
            raise RefusedError(
                f"found ids from {int(ids.min())} to {int(ids.max())} from {kind}; needed ids below {most}, the size "
                "of the vocabulary. Correct the format, or name the tokenizer that it is of."
            )

    def _set_aside(self, bad: BadRow) -> None:
        bad = msgspec.structs.replace(bad, path=Redactor().text(bad.path))
        self._bad.append(bad)
        self._bad_total += 1
        allowed = self._build.max_bad_records
        if self._bad_total > allowed:
            place = f"{bad.path}:{bad.line}" if bad.line else bad.path
            raise RefusedError(
                f"{place}: {bad.error}\n(data.max_bad_records allows {allowed} such rows of a cache to be set aside.)"
            )

    def _cut(self) -> None:
        """Publishes the rows up to and with the one that fills a segment."""
        lengths, numbers = np.concatenate(self._lengths), np.concatenate(self._row_numbers)
        ends = np.cumsum(lengths)
        count = int(np.searchsorted(ends, self._build.segment_tokens)) + 1
        tokens, next_row = int(ends[count - 1]), int(numbers[count - 1]) + 1
        self._publish(tokens, ends[:count], next_row, is_last=False)
        self._lengths, self._row_numbers = [lengths[count:]], [numbers[count:]]

    def finish(self) -> None:
        """Publishes what is left as the unit's last segment."""
        ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *self._lengths]))
        self._publish(self._columns[INPUT_IDS].length, ends, self.next_row, is_last=True)

    def _publish(self, tokens: int, ends: NDArray[np.int64], next_row: int, *, is_last: bool) -> None:
        bad = [row for row in self._bad if is_last or row.row < next_row]
        empty = [row for row in self._empty if is_last or row < next_row]
        note = SegmentNote(
            rows=len(ends),
            tokens=tokens,
            next_row=next_row,
            is_last=is_last,
            empty_rows=len(empty),
            bad_rows=len(bad),
        )
        offsets = np.concatenate([np.zeros(1, np.int64), ends])
        name = segment_name(self._unit, self._position)
        columns = {column: buffer.first(tokens) for column, buffer in self._columns.items()}
        write_segment(self._build.cache, name, columns, offsets, note, bad, self._build.context)
        for buffer in self._columns.values():
            buffer.drop(tokens)
        self._position += 1
        self._bad, self._empty = self._bad[len(bad) :], self._empty[len(empty) :]


class _Buffer:
    """A column in the making: filled at the end, emptied at the front, in memory that is used again."""

    def __init__(self, dtype: str, capacity: int) -> None:
        self._array: NDArray[Any] = np.empty(capacity, dtype)
        self.length = 0

    def append(self, values: NDArray[Any]) -> None:
        length = self.length + len(values)
        if length > len(self._array):
            larger = np.empty(max(length, len(self._array) * 5 // 4), self._array.dtype)
            larger[: self.length] = self._array[: self.length]
            self._array = larger
        self._array[self.length : length] = values
        self.length = length

    def first(self, count: int) -> NDArray[Any]:
        return self._array[:count]

    def drop(self, count: int) -> None:
        rest = self._array[count : self.length].copy()
        self._array[: len(rest)] = rest
        self.length = len(rest)


def _unencoded(batch: RowBatch, encoded: EncodedRows) -> list[BadRow]:
    """The rows that were read but could not be encoded."""
    found = []
    for index, error in encoded.bad.items():
        row = batch.rows[index]
        path, line = batch.place(row)
        excerpt = str({name: values[index] for name, values in batch.values.items()})[:200]
        found.append(BadRow(path=path, line=line, error=error, excerpt=excerpt, row=row))
    return found
