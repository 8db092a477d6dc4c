"""The arrays of a batch, made from spans of tokens.

In: for each row the cache that it comes from and its span there. Out: a `Batch` of NumPy arrays. Reads are begun for
all rows first (`begin_batch`) and waited for later (`PendingBatch.finish`), so that the next batch is read while this
one is put together. B rows, S tokens, M places a row in tables of documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponente.batches.rows import Rows
from ponente.batches.shape import BatchShape
from ponente.batches.tables import no_tables, tables_of
from ponente.store.token_cache.cache import INPUT_IDS
from ponente.store.token_cache.spans import SpanRead

LOSS_MASK = "loss_mask"  # of a token: whether it counts as one that is predicted
LOSS_WEIGHTS = "loss_weights"  # of a token: the weight of predicting the one after it


class Batch(NamedTuple):
    """One batch; a tree of arrays to JAX. Padding is the last document of its row, and has no weight."""

    tokens_BS: Any  # int32
    targets_BS: Any  # int32: the token after each
    loss_weights_BS: Any  # float32: of predicting each target; 0 where there is none
    segment_ids_BS: Any  # int32: the number of the document in its row
    positions_BS: Any  # int32: in the document, or in the row
    document_starts_BM: Any  # int32: the same documents as tables, of rows that are computed together; or M is 0
    document_lengths_BM: Any  # int32


@dataclass(frozen=True)
class RowGroup:
    """Rows of a batch that come from one dataset."""

    rows: Rows
    numbers: NDArray[np.int64]  # in the batch
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


@dataclass(frozen=True)
class _GroupRead:
    group: RowGroup
    columns: dict[str, SpanRead]
    borders: tuple[NDArray[np.int64], NDArray[np.int64]]  # row in the group, place in the row: where documents begin

    def weights(self, length: int) -> NDArray[np.float32]:
        """The weight of predicting each target, by the cache's own column and by where documents end."""
        group, rows = self.group, self.group.rows
        known = np.minimum(group.stops - group.starts, length)
        predicted = np.minimum(rows.cache.tokens - 1 - group.starts, known)  # the last token of all predicts nothing
        place = np.arange(length)
        weights: NDArray[np.float32] = (place < predicted[:, None]).astype(np.float32)
        if not rows.crosses_documents:
            owner, at = self.borders
            weights[owner, at - 1] = 0
        for column, read in self.columns.items():
            if column in (LOSS_MASK, LOSS_WEIGHTS):
                shift = 1 if column == LOSS_MASK else 0
                found = np.zeros((len(known), length + 1), rows.cache.columns[column])
                read.into(found, np.arange(len(known)))
                weights *= found[:, shift : length + shift]
        return weights


@dataclass(frozen=True)
class PendingBatch:
    """A batch whose tokens are on their way."""

    shape: BatchShape
    count: int
    reads: list[_GroupRead]

    def finish(self, rows_together: int | None = None, widest: Callable[[int], int] | None = None) -> Batch:
        """Waits for the tokens and makes the arrays.

        Args:
            rows_together: how many rows are computed at once, for tables of their documents; None: no tables.
            widest: of the places a row that these tables need, those of the tables of all processes.
        """
        count, length = self.count, self.shape.length
        ids = np.zeros((count, length + 1), np.int32)
        weights = np.zeros((count, length), np.float32)
        known = np.zeros(count, np.int64)
        borders = [np.arange(count) * length]  # where documents begin in the line of all rows
        for read in self.reads:
            numbers = read.group.numbers
            read.columns[INPUT_IDS].into(ids, numbers)
            weights[numbers] = read.weights(length)
            known[numbers] = np.minimum(read.group.stops - read.group.starts, length)
            owner, at = read.borders
            if self.shape.blocks_documents:
                inside = at < known[numbers][owner]
                borders.append((numbers[owner] * length + at)[inside])
        borders.append((np.arange(count) * length + known)[(known > 0) & (known < length)])  # padding
        firsts = np.unique(np.concatenate(borders))
        tables = no_tables(count)
        if rows_together is not None:
            tables = tables_of(firsts, count, length, rows_together, widest)
        tokens = ids[:, :-1].copy()
        short = np.flatnonzero(known < length)
        tokens[short, known[short]] = 0  # the token after the last is only predicted
        return Batch(tokens, ids[:, 1:], weights, *_documents(firsts, count, self.shape), *tables)


def begin_batch(shape: BatchShape, count: int, groups: Sequence[RowGroup]) -> PendingBatch:
    """Begins to read the rows of a batch of `count`; rows in no group are padding."""
    reads = []
    for group in groups:
        source = group.rows.cache
        stops = np.minimum(np.minimum(group.stops, group.starts + shape.length) + 1, source.tokens)
        pieces = source.pieces(group.starts, stops)
        columns = {column: source.begin_read(pieces, column) for column in source.columns}
        reads.append(_GroupRead(group, columns, source.document_starts(pieces)))
    return PendingBatch(shape, count, reads)


def _documents(firsts: NDArray[np.int64], count: int, shape: BatchShape) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Segment ids and positions, from where each document begins in the line of all rows."""
    length = shape.length
    row_first = np.searchsorted(firsts, np.arange(count) * length)
    number = np.arange(len(firsts)) - row_first[firsts // length]
    lengths = np.diff(np.append(firsts, count * length))
    segment_ids = np.repeat(number.astype(np.int32), lengths).reshape(count, length)
    positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    if shape.positions == "document":
        positions -= np.repeat((firsts % length).astype(np.int32), lengths).reshape(count, length)
    return segment_ids, positions
