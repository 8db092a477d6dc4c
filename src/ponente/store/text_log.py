"""Files that grow line by line, wherever they lie: appended to on a local disk, sent again and again to a bucket."""

import io
import os
import time
from typing import BinaryIO, cast

from ponente.store.paths import protocol_of
from ponente.store.volume import volume_of

_SECONDS = 5.0  # between two times that a log is sent, at least
_SHARE = 0.1  # of the time, at most, that goes into sending


def open_log(path: str) -> BinaryIO:
    """Opens a log for appending; what is written is seen after a flush at once on a disk, in seconds on a bucket."""
    if protocol_of(path) != "file":
        return cast(BinaryIO, _SentLog(path))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    return open(path, "ab")


class _SentLog(io.RawIOBase):
    """A log that is kept here as a whole, and sent when it has grown and some time has passed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._volume = volume_of(path)
        self._data = bytearray(self._volume.read(path) if self._volume.exists(path) else b"")
        self._sent, self._next = len(self._data), 0.0

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self._data += data
        return len(data)

    def flush(self) -> None:
        if not self.closed and time.monotonic() >= self._next:
            self._send()

    def close(self) -> None:
        if not self.closed:
            self._send()
        super().close()

    def _send(self) -> None:
        if self._sent == len(self._data):
            return
        began = time.monotonic()
        self._volume.replace(self._path, bytes(self._data))
        self._sent = len(self._data)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(_SECONDS, took / _SHARE)
