"""The arrays of a cache's segments that are open, and the offsets that are in memory: as many as are of use.

In: segments of a ledger. Out: TensorStore arrays, checked against the ledger, and row offsets. Many are opened at once
where many are wanted; those not used for longest are let go.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.store.paths import join
from ponente.store.tensors import TensorError, begin_open_array, naming_failure
from ponente.store.token_cache.ledger import SegmentRecord
from ponente.store.token_cache.segment import OFFSETS, segment_path

_OPEN_ARRAYS = 4096
_OFFSET_BYTES = 256 << 20


class OpenSegments:
    """What of one cache is open. Several threads may use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._context = ts.Context()
        self._lock = threading.Lock()
        self._arrays: OrderedDict[tuple[str, str], ts.TensorStore] = OrderedDict()
        self._offsets: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._offset_bytes = 0

    def column(self, segment: SegmentRecord, column: str) -> ts.TensorStore:
        """The open array of a column of a segment."""
        return self.columns([segment], column)[segment.name]

    def columns(self, segments: Iterable[SegmentRecord], column: str) -> dict[str, ts.TensorStore]:
        """The open arrays of a column, by the names of their segments."""
        wanted = {segment.name: segment for segment in segments}
        with self._lock:
            found = {name: self._arrays[name, column] for name in wanted if (name, column) in self._arrays}
            for name in found:
                self._arrays.move_to_end((name, column))
        opening = {
            name: begin_open_array(join(segment_path(self._path, name), column), self._context)
            for name in wanted
            if name not in found
        }
        for name, future in opening.items():
            place = segment_path(self._path, name)
            with naming_failure(join(place, column)):
                found[name] = future.result()
            self._check(wanted[name], column, found[name])
        with self._lock:
            self._arrays.update({(name, column): found[name] for name in opening})
            while len(self._arrays) > _OPEN_ARRAYS:
                self._arrays.popitem(last=False)
        return found

    def _check(self, segment: SegmentRecord, column: str, array: ts.TensorStore) -> None:
        needed = segment.rows + 1 if column == OFFSETS else segment.tokens
        if array.shape[0] != needed:
            raise TensorError(
                f"found {array.shape[0]} elements in {column} of {segment_path(self._path, segment.name)}; needed "
                f"{needed}, as the ledger says. Restore the folder from a copy, or remove the cache and build it again."
            )

    def offsets(self, segment: SegmentRecord) -> NDArray[np.int64]:
        """Where the rows of a segment begin in it, and, last, its number of tokens."""
        with self._lock:
            found = self._offsets.get(segment.name)
        if found is None:
            found = self.load_offsets([segment])[segment.name]
        return found

    def load_offsets(self, segments: Iterable[SegmentRecord]) -> dict[str, NDArray[np.int64]]:
        """Has the offsets of segments in memory; returns those that were not."""
        with self._lock:
            missing = [segment for segment in segments if segment.name not in self._offsets]
        reading = {name: array.read() for name, array in self.columns(missing, OFFSETS).items()}
        read = {}
        for name, future in reading.items():
            with naming_failure(segment_path(self._path, name)):
                read[name] = np.asarray(future.result())
        with self._lock:
            for name, offsets in read.items():
                self._offsets[name] = offsets
                self._offset_bytes += offsets.nbytes
            while self._offset_bytes > _OFFSET_BYTES and len(self._offsets) > len(read):
                self._offset_bytes -= self._offsets.popitem(last=False)[1].nbytes
        return read
