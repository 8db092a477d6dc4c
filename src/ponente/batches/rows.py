"""The rows of training that a token cache gives: each a span of its tokens, found by number.

In: a cache and the length S of a row. Out: spans. `concatenated` cuts the line of all tokens every S; `packed` has
whole documents; `single` one document each. A row may be shorter than S; the rest of it is padding.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ponente.batches.packing import OverLength, packing_of
from ponente.batches.permutation import Indices
from ponente.batches.shape import BatchShape
from ponente.config.errors import RefusedError
from ponente.store.token_cache.cache import TokenCache

Packing = Literal["concatenated", "packed", "single"]
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RowPolicy:
    """How documents become rows."""

    packing: Packing = "concatenated"
    max_documents: int | None = None  # packed into a row: by default as many as the batch's shape says
    over_length: OverLength = "split"


class Rows(Protocol):
    """The rows of one cache."""

    cache: TokenCache
    crosses_documents: bool  # whether the last token of a document predicts the first of the next

    @property
    def available(self) -> int:
        """How many rows can be read now; all of them, once the cache is finished."""

    def spans(self, rows: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first token of each row, and the one after its last."""


class ConcatenatedRows:
    """Row i is tokens i·S to (i+1)·S; each token but the very first is predicted once."""

    crosses_documents = True

    def __init__(self, cache: TokenCache, length: int) -> None:
        self.cache = cache
        self._length = length

    @property
    def available(self) -> int:
        tokens = self.cache.tokens
        return -(-tokens // self._length) if self.cache.is_finished else max(0, tokens - 1) // self._length

    def spans(self, rows: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = rows * self._length
        return starts, np.minimum(starts + self._length, self.cache.tokens)


class PackedRows:
    """Rows of a stored packing."""

    crosses_documents = False

    def __init__(self, cache: TokenCache, length: int, max_documents: int, over_length: OverLength) -> None:
        self.cache = cache
        self._starts, self._stops = packing_of(cache, length, max_documents, over_length)

    @property
    def available(self) -> int:
        return len(self._starts)

    def spans(self, rows: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._starts[rows], self._stops[rows]


class SomeRows:
    """Some rows of others, by number."""

    def __init__(self, rows: Rows, numbers: Indices) -> None:
        self.cache, self.crosses_documents = rows.cache, rows.crosses_documents
        self._rows = rows
        self._numbers = numbers

    @property
    def available(self) -> int:
        return len(self._numbers)

    def spans(self, rows: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._rows.spans(self._numbers[rows])


def rows_of(cache: TokenCache, policy: RowPolicy, shape: BatchShape) -> Rows:
    """The rows of a cache. Only concatenated ones can be had of a cache that is not finished."""
    length = shape.length
    if policy.packing == "concatenated":
        return ConcatenatedRows(cache, length)
    if not cache.is_finished:
        raise RefusedError(
            f"found {cache.path} still being built; needed a finished cache to pack its documents. Build it first: "
            "ponente cache-dataset --config_path CONFIG.yaml"
        )
    if policy.packing == "single":  # one token more than a row still fits: it is only predicted
        longest = length if policy.over_length == "split" else length + 1
        return PackedRows(cache, longest, 1, policy.over_length)
    room = shape.max_documents - 1  # padding is a document too
    return PackedRows(cache, length, min(policy.max_documents or room, room), policy.over_length)


def tokens_in(rows: Rows, length: int) -> int:
    """How many tokens the rows hold; the rest of them is padding."""
    found = 0
    for first in range(0, rows.available, _ROWS_AT_ONCE):
        starts, stops = rows.spans(np.arange(first, min(first + _ROWS_AT_ONCE, rows.available)))
        found += int(np.minimum(stops - starts, length).sum())
    return found
