"""The bytes of a .zst file, through pyarrow."""

import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from ponente.store.sources.streams import CHUNK_BYTES, DamagedError, open_raw


class _Watched(io.RawIOBase):
    """A file that remembers whether it was the one that failed."""

    def __init__(self, raw: BinaryIO) -> None:
        self.taken = 0
        self.has_failed = False
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self.has_failed = True
        data = self._raw.read(size)
        self.has_failed = False
        self.taken += len(data)
        return data


def zstd_chunks(path: str) -> Iterator[tuple[bytes, int]]:
    """The decompressed bytes in chunks, each with how far into the file its reading had to go.

    pyarrow forgets what a failing read had made; so after a failure the same place is read again byte by byte.
    """
    made = 0
    try:
        for chunk, taken in _chunks(path, CHUNK_BYTES, 0):
            made += len(chunk)
            yield chunk, taken
    except DamagedError:
        yield from _rescued(path, made)


def _rescued(path: str, made: int) -> Iterator[tuple[bytes, int]]:
    """What comes after the first `made` bytes and before the damage."""
    held: list[tuple[bytes, int]] = []
    damage = None
    try:
        held.extend(_chunks(path, 1, made))
    except DamagedError as error:
        damage = error
    if held:
        yield b"".join(byte for byte, _ in held), held[-1][1]
    if damage is not None:
        raise damage


def _chunks(path: str, size: int, skip: int) -> Iterator[tuple[bytes, int]]:
    with open_raw(path) as raw:
        watched = _Watched(raw)
        stream = pa.CompressedInputStream(pa.PythonFile(watched, "r"), "zstd")
        try:
            while skip:
                skip -= len(stream.read(min(skip, CHUNK_BYTES)))
            while chunk := stream.read(size):
                yield chunk, watched.taken
        except (OSError, pa.ArrowException) as error:
            if watched.has_failed:
                raise
            raise DamagedError(str(error)) from error
