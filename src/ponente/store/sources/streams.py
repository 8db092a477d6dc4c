"""The bytes of a file in order, decompressed where its ending says so, in chunks of bounded size.

In: any place that fsspec knows, plain or .gz .bz2 .xz .zst. Out: chunks, and how many source bytes they took. Bytes
that do not decode are a DamagedError after all that came before them; a failing disk or network stays what it is.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import fsspec

from ponente.store.paths import basename, protocol_of

CHUNK_BYTES = 1 << 17  # small enough for the allocator to keep what it gives: twice as fast as 1 << 20
COMPRESSIONS = (".gz", ".bz2", ".zst", ".xz")
_SLOW_CHUNK_BYTES = 1 << 16  # bz2 and xz forget what a failing call had made, so that calls are small
_RESCUE_BYTES = 64
_GZIP_WINDOW = 31  # zlib's word for gzip with the largest window

Read = Callable[[], bytes]


class DamagedError(Exception):
    """The bytes from here on do not decode: truncated or corrupt."""


class ByteStream:
    """Iterates over the bytes of a file from `start` (of plain files only); `taken` counts what was read of it."""

    def __init__(self, path: str, start: int = 0) -> None:
        self.path = path
        self.taken = 0
        self._start = start

    def __iter__(self) -> Iterator[bytes]:
        compression = compression_of(self.path)
        if compression == ".zst":
            from ponente.store.sources.zstd import zstd_chunks

            for chunk, taken in zstd_chunks(self.path):
                self.taken = taken
                yield chunk
            return
        if compression == ".gz":
            yield from self._gunzipped()
            return
        with open_raw(self.path) as raw:
            raw.seek(self._start)
            yield from _DECODERS[compression](lambda: self._read(raw))

    def _gunzipped(self) -> Iterator[bytes]:
        """Fast while all is well; a damaged file is read again with zlib, which keeps all that can be kept."""
        from ponente.store.sources.inflate import NotWholeError, inflated

        given = 0
        with open_raw(self.path) as raw:

            def read() -> bytes:
                return self._read(raw)

            try:
                for chunk in inflated(read, lambda unused: _after_member(unused, read), CHUNK_BYTES):
                    given += len(chunk)
                    yield chunk
                return
            except NotWholeError:
                pass
        with open_raw(self.path) as raw:
            for chunk in _gunzipped(lambda: raw.read(CHUNK_BYTES)):
                rest = chunk[min(given, len(chunk)) :]
                given -= len(chunk) - len(rest)
                if rest:
                    yield rest

    def _read(self, raw: BinaryIO) -> bytes:
        data = raw.read(CHUNK_BYTES)
        self.taken += len(data)
        return data


def name_of(path: str) -> str:
    """The last name of a place in lower case, without what a URL asks for (`?…`)."""
    place = path.partition("?")[0] if "://" in path else path
    return basename(place).lower()


def compression_of(path: str) -> str:
    """The ending of `path` that says how it is compressed, or "" for plain files."""
    lowered = name_of(path)
    return next((ending for ending in COMPRESSIONS if lowered.endswith(ending)), "")


def open_raw(path: str) -> BinaryIO:
    """Opens a file for reading bytes, with a cursor of its own."""
    if protocol_of(path) == "file":
        return cast(BinaryIO, open(path, "rb", buffering=0))
    filesystem, inner = fsspec.core.url_to_fs(path)
    if protocol_of(path) == "memory":  # where all readers of a file share one cursor
        return io.BytesIO(filesystem.cat_file(inner))
    return cast(BinaryIO, filesystem.open(inner, "rb"))


def read_at(file: BinaryIO, start: int, length: int) -> bytes:
    """`length` bytes of an open file from `start` on; fewer only where it ends."""
    file.seek(start)
    parts = []
    while length and (data := file.read(length)):
        parts.append(data)
        length -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _plain(read: Read) -> Iterator[bytes]:
    while data := read():
        yield data


def _gunzipped(read: Read) -> Iterator[bytes]:
    inflater, pending, inside = zlib.decompressobj(_GZIP_WINDOW), b"", False
    while data := (pending or read()):
        before = inflater.copy()
        try:
            out = inflater.decompress(data, CHUNK_BYTES)
        except zlib.error as error:
            yield from _rescued(before, data)
            raise DamagedError(str(error)) from error
        if out:
            yield out
        pending, inside = inflater.unconsumed_tail, True
        if inflater.eof:
            pending = _after_member(inflater.unused_data, read)
            inflater, inside = zlib.decompressobj(_GZIP_WINDOW), False
    if inside:
        raise DamagedError("it ends in the middle of its gzip data")


def _rescued(inflater: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    """What `data` holds before the byte that breaks it."""
    try:
        while out := inflater.decompress(data, _RESCUE_BYTES):
            yield out
            data = inflater.unconsumed_tail
    except zlib.error:
        return


def _after_member(unused: bytes, read: Read) -> bytes:
    """What follows a member, without the zero bytes that pad it."""
    while not (unused := unused.lstrip(b"\0")) and (unused := read()):
        pass
    return unused


def _expanded(read: Read, make: "Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]") -> Iterator[bytes]:
    decompressor, pending, inside = make(), b"", False
    while True:
        data = pending or (read() if decompressor.needs_input else b"")
        if not data and decompressor.needs_input:
            break
        try:
            out = decompressor.decompress(data, _SLOW_CHUNK_BYTES)
        except (OSError, lzma.LZMAError, ValueError) as error:
            raise DamagedError(str(error)) from error
        if out:
            yield out
        pending, inside = b"", True
        if decompressor.eof:
            pending = _after_member(decompressor.unused_data, read)
            decompressor, inside = make(), False
    if inside:
        raise DamagedError("it ends in the middle of its compressed data")


_DECODERS: dict[str, Callable[[Read], Iterator[bytes]]] = {
    "": _plain,
    ".bz2": lambda read: _expanded(read, bz2.BZ2Decompressor),
    ".xz": lambda read: _expanded(read, lzma.LZMADecompressor),
}
