"""Files that grow line by line, wherever they lie: appended to on a local disk, sent again and again to a bucket."""

import io
import os
import sys
import threading
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
    """A log that is kept here as a whole, and sent by a thread of its own when it has grown.

    Whoever writes never waits for the store. What cannot be sent is said on stderr, and tried again with what follows.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._volume = volume_of(path)
        self._data = bytearray(self._volume.read(path) if self._volume.exists(path) else b"")
        self._sent = len(self._data)
        self._grown, self._sending = threading.Condition(), threading.Lock()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="ponente-log", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        with self._grown:
            self._data += data
            self._grown.notify()
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with self._grown:
                self._is_ending = True
                self._grown.notify()
            self._send()
        super().close()

    def _run(self) -> None:
        while True:
            with self._grown:
                self._grown.wait_for(lambda: self._is_ending or len(self._data) > self._sent)
                if self._is_ending:
                    return
            began = time.monotonic()
            self._send()
            took = time.monotonic() - began
            with self._grown:
                self._grown.wait_for(lambda: self._is_ending, timeout=max(_SECONDS, took / _SHARE))

    def _send(self) -> None:
        with self._sending:
            whole = bytes(self._data)
            if len(whole) == self._sent:
                return
            try:
                self._volume.replace(self._path, whole)
                self._sent = len(whole)
            except OSError as error:  # a log that cannot be sent must not end what it tells of
                sys.stderr.write(f"{self._path}: the log could not be sent: {error}\n")
