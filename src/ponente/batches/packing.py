"""Greedy packing: as many whole documents to a row of training as fit, in the order of the cache.

In: where documents begin and end. Out: spans of tokens, one a row; a row never needs tokens from two places. What is
longer than a row is treated as asked: split over rows, truncated, dropped, or an error.
"""

import logging
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import RefusedError
from ponente.store.token_cache.cache import TokenCache
from ponente.store.token_cache.packing import PackingKey, Spans, read_packing, write_packing

OverLength = Literal["split", "truncate", "drop", "error"]

logger = logging.getLogger(__name__)

_unstored: dict[PackingKey, Spans] = {}  # of caches that can only be read


def packing_of(cache: TokenCache, length: int, max_documents: int, over_length: OverLength) -> Spans:
    """The rows of a finished cache, packed; read where they are stored, else made and stored."""
    key = PackingKey(cache=cache.digest, length=length, max_documents=max_documents, over_length=over_length)
    found = _unstored.get(key) or read_packing(cache.path, key)
    if found is None:
        found = packed(cache.row_offsets(0, cache.rows), length, max_documents, over_length, cache.path)
        try:
            write_packing(cache.path, key, found)
        except OSError as error:  # others' caches may be for reading only
            logger.warning("the packing of %s could not be stored (%s) and is made again each time", cache.path, error)
            _unstored[key] = found
    return found


def packed(
    offsets: NDArray[np.int64], length: int, max_documents: int, over_length: OverLength, place: str = "the cache"
) -> Spans:
    """Packs the documents `offsets[i]` to `offsets[i + 1]` into rows of at most `length` tokens and `max_documents`."""
    starts, lengths = _pieces(offsets, length, over_length, place)
    if not len(starts):
        return starts, starts
    ends = starts + lengths
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    fits = np.searchsorted(before, before[:-1] + length, side="right") - 1  # the first piece that does not
    run_ends = np.append(np.flatnonzero(starts[1:] != ends[:-1]) + 1, len(starts))  # a row has no gaps
    run_end = run_ends[np.searchsorted(run_ends, np.arange(len(starts)), side="right")]
    following = np.minimum(np.minimum(fits, np.arange(len(starts)) + max_documents), run_end).tolist()
    firsts = []
    piece = 0
    while piece < len(following):
        firsts.append(piece)
        piece = following[piece]
    first = np.array(firsts, np.int64)
    last = np.append(first[1:], len(starts)) - 1
    return starts[first], ends[last]


def _pieces(
    offsets: NDArray[np.int64], length: int, over_length: OverLength, place: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The documents, and of those that are too long what is kept: (starts, lengths)."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    is_long = lengths > length
    if not is_long.any():
        return starts, lengths
    count, longest = int(is_long.sum()), int(np.argmax(lengths))
    if over_length == "error":
        raise RefusedError(
            f"found {count:,} documents of {place} longer than a row of {length:,} tokens (the longest, number "
            f"{longest}, has {int(lengths[longest]):,}); needed all to fit. Raise train_seq_len, or set over_length: "
            "split, truncate or drop for the dataset."
        )
    logger.info("%s: %s documents are longer than %s tokens: %s", place, f"{count:,}", f"{length:,}", over_length)
    if over_length == "drop":
        return starts[~is_long], lengths[~is_long]
    if over_length == "truncate":
        return starts, np.minimum(lengths, length)
    counts = -(-lengths // length)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return (
        np.repeat(starts, counts) + number * length,
        np.minimum(np.repeat(lengths, counts) - number * length, length),
    )
