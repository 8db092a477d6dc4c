"""One dataset as an endless, ordered stream of rows: held-out rows left out, a part of it taken, each epoch shuffled.

In: the rows of a cache, an order, a key. Out: the span of tokens at any position of the stream. While the cache is
still being built, a position waits until enough of it is there; what it gives does not depend on when it is asked.
"""

import copy
import logging
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ponente.batches.keys import fold, root_key
from ponente.batches.order import AnyOrder
from ponente.batches.permutation import Indices
from ponente.batches.rows import Rows
from ponente.config.errors import RefusedError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_UNKNOWN_LENGTH = 1 << 62


def held_out_rows(name: str, seed: int, rows: int, count: int) -> Indices:
    """Rows that are kept for validation: one from each of `count` equal stretches of the dataset, in order."""
    if not 0 <= count < rows:
        raise RefusedError(
            f"found data.num_validation_sequences: {count} for {name}, which has {rows} rows; needed fewer. "
            "Hold out fewer."
        )
    edges = np.arange(count + 1) * rows // max(1, count)
    draws = fold(root_key(seed, "held out", name), np.arange(count)) % np.maximum(np.diff(edges), 1).astype(np.uint64)
    return edges[:-1] + draws.astype(np.int64)


class Dataset:
    """A stream of rows for training."""

    def __init__(
        self,
        name: str,
        rows: Rows,
        order: AnyOrder,
        seed: int,
        *,
        held_out: Indices | None = None,
        shift: int | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """Args:
        held_out: row numbers, sorted, that do not belong to the stream.
        shift: each epoch after the first begins its rows later by some tokens of its own, fewer than this.
        on_wait: is called again and again while rows are waited for; raises if they will never come.
        """
        self.name = name
        self.rows = rows
        self.order = order
        self._key = root_key(seed, "shuffle", name)
        self._part_key = root_key(seed, "part", name)
        self._held_out = np.zeros(0, np.int64) if held_out is None else held_out
        self._gaps = self._held_out - np.arange(len(self._held_out))  # how many rows of the stream stand before each
        self._shift = shift
        self._shift_key = root_key(seed, "shift", name)
        self._limit: int | None = None
        self._on_wait = on_wait

    def limited(self, limit: int) -> "Dataset":
        """The same dataset, of which only so many rows, the first of a shuffled epoch, are used."""
        part = copy.copy(self)
        part._limit = limit
        return part

    @property
    def length(self) -> int:
        """How many rows an epoch has; waits until the cache is finished."""
        self._wait(None)
        return self._whole() if self._limit is None else min(self._limit, self._whole())

    def _whole(self) -> int:
        spare = 0 if self._shift is None else 1  # the last row would begin behind the end
        return self.rows.available - len(self._held_out) - spare

    def spans(
        self, positions: Indices, on_wait: Callable[[], None] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first token of the row at each position, and the one after its last."""
        starts, stops = self.rows.spans(self.row_numbers(positions, on_wait))
        if self._shift is None or not self.rows.cache.is_finished:
            return starts, stops
        epochs = positions // self.length
        later = (fold(self._shift_key, epochs) % np.uint64(self._shift)).astype(np.int64) * (epochs > 0)
        return starts + later, np.minimum(stops + later, self.rows.cache.tokens)

    def row_numbers(self, positions: Indices, on_wait: Callable[[], None] | None = None) -> Indices:
        """Which row of the cache stands at each position; `on_wait` is called while it has to wait, and may raise."""
        is_part = self._limit is not None or len(self._held_out) > 0
        self._wait(None if is_part else self.order.horizon(int(positions.max(initial=0))), on_wait)
        if not self.rows.cache.is_finished:
            return self.order.indices(positions, _UNKNOWN_LENGTH, self._key)
        length = self.length
        found = self.order.indices(positions, length, self._key)
        if length < self._whole():
            found = self.order.indices(found, self._whole(), self._part_key)
        return found + np.searchsorted(self._gaps, found, side="right")

    def _has(self, needed: int | None) -> bool:
        return self.rows.cache.is_finished or (needed is not None and self.rows.available >= needed)

    def _wait(self, needed: int | None, on_wait: Callable[[], None] | None = None) -> None:
        """Waits until so many rows are there (None: all)."""
        cache = self.rows.cache
        has_said = False
        while not self._has(needed):
            cache.refresh()
            if self._has(needed):
                return
            for called in (on_wait, self._on_wait):
                if called is not None:
                    called()
            if not has_said:
                wanted = "all" if needed is None else f"{needed:,}"
                logger.info("waiting for %s rows of %s, which has %s so far", wanted, self.name, self.rows.available)
                has_said = True
            time.sleep(_POLL_SECONDS)
