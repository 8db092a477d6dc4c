"""Lines in blocks: chunks of bytes come in, blocks that end where a line ends go out, in bounded memory.

A byte order mark is removed, a last line without newline is a line, and lines are counted as the file has them, blank
ones too. A block may stand for one row that is lost instead: a line that is too long, an empty or a damaged file.
"""

import bisect
import logging
from collections.abc import Iterable, Iterator

import msgspec

from ponente.store.sources.streams import CHUNK_BYTES, DamagedError, open_raw

BLOCK_BYTES = 1 << 17
MAX_LINE_BYTES = 256 << 20  # a file that is not lines must not fill memory
BOM = b"\xef\xbb\xbf"
_EXCERPT_BYTES = 1 << 10
_LONG_LINE_BYTES = 1 << 9

logger = logging.getLogger(__name__)


class Block(msgspec.Struct, frozen=True):
    """Whole lines, without their newlines; or, where there is a `fault`, how one row that is lost begins."""

    lines: list[bytes]
    first_line: int  # from 1, counted from where the stream began
    size: int
    fault: str = ""


class _Cutter:
    """Takes chunks, gives blocks."""

    def __init__(self, block_bytes: int, max_line_bytes: int) -> None:
        self._block_bytes, self._max_line_bytes = block_bytes, max_line_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._has_newline = False  # whether some part has one
        self._line = 1
        self._is_start = True
        self._is_dropping = False  # the rest of a line that is too long
        self._split = _split_long  # of lines like those of the last block

    def add(self, chunk: bytes) -> Iterator[Block]:
        if self._is_dropping:
            newline = chunk.find(b"\n")
            if newline < 0:
                return
            chunk, self._is_dropping = chunk[newline + 1 :], False
        if not self._has_newline:
            first = chunk.find(b"\n")
            if self._held + (len(chunk) if first < 0 else first) > self._max_line_bytes:
                yield self._too_long(chunk)
                yield from self.add(chunk)
                return
        cut = chunk.rfind(b"\n") + 1
        self._has_newline = self._has_newline or cut > 0
        if self._has_newline and self._held + len(chunk) >= self._block_bytes:
            if not cut:
                chunk = b"".join([*self._parts, chunk])
                self._parts, cut = [], chunk.rfind(b"\n") + 1
            data = b"".join([*self._parts, memoryview(chunk)[:cut]])
            self._parts, self._held, self._has_newline = [], 0, False
            yield self._block(data)
            chunk = chunk[cut:]
        self._parts.append(chunk)
        self._held += len(chunk)

    def finish(self) -> Iterator[Block]:
        """What is left at the end of a stream."""
        if data := b"".join(self._parts):
            yield self._block(data)

    def break_off(self, reason: str) -> Iterator[Block]:
        """What is left where a stream broke, and the fault."""
        data = b"".join(self._parts)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield self._block(data[:cut])
        yield Block([data[cut : cut + _EXCERPT_BYTES]], self._line, 0, rest_is_lost(reason))

    def _block(self, data: bytes) -> Block:
        if self._is_start:
            data, self._is_start = data.removeprefix(BOM), False
        lines = self._split(data)
        if not lines[-1]:
            lines.pop()
        self._split = _split_long if len(data) > _LONG_LINE_BYTES * len(lines) else _split_short
        block = Block(lines, self._line, len(data))
        self._line += len(lines)
        return block

    def _too_long(self, chunk: bytes) -> Block:
        head = b"".join([*self._parts, chunk[:_EXCERPT_BYTES]]).partition(b"\n")[0][:_EXCERPT_BYTES]
        fault = (
            f"found a line longer than {self._max_line_bytes} bytes; needed one row a line. "
            "Split the row, or check that the file is lines."
        )
        self._parts, self._held, self._is_dropping, self._is_start = [], 0, True, False
        self._line += 1
        return Block([head], self._line - 1, 0, fault)


def _split_short(data: bytes) -> list[bytes]:
    return data.split(b"\n")


def _split_long(data: bytes) -> list[bytes]:
    """What `split` gives; it looks at every byte for itself, `find` at many at once, but takes longer to begin."""
    lines, start = [], 0
    while (end := data.find(b"\n", start)) >= 0:
        lines.append(data[start:end])
        start = end + 1
    lines.append(data[start:])
    return lines


def line_blocks(
    chunks: Iterable[bytes], *, block_bytes: int = BLOCK_BYTES, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Block]:
    """The lines of a stream in blocks of about `block_bytes`."""
    cutter = _Cutter(block_bytes, max_line_bytes)
    try:
        for chunk in chunks:
            yield from cutter.add(chunk)
    except DamagedError as error:
        yield from cutter.break_off(str(error))
    else:
        yield from cutter.finish()


def rest_is_lost(reason: object, what: str = "the rest of the file") -> str:
    """The error of the row at which a file broke."""
    return (
        f"found the file truncated or corrupt from here on ({reason}); needed a whole file: {what} is lost. "
        "Copy it again from its origin."
    )


def owned_chunks(chunks: Iterable[bytes], start: int, stop: int) -> Iterator[bytes]:
    """Of chunks that begin one byte before `start` (or at 0), the lines that start in [start, stop)."""
    position, inside = max(0, start - 1), start == 0
    for chunk in chunks:
        begin, end = 0, len(chunk)
        if not inside:
            begin = chunk.find(b"\n") + 1
            if position + (begin or end) >= stop:
                return
            inside = begin > 0
        if inside and position + end >= stop:
            last = chunk.find(b"\n", max(begin, stop - 1 - position)) + 1
            if last:
                yield chunk[begin:last]
                return
        if inside and begin < end:
            yield chunk[begin:]
        position += end


_NEWLINES: dict[str, list[tuple[int, int]]] = {}  # path -> (offset, newlines before it), sorted


def lines_before(path: str, start: int) -> int:
    """How many lines of a plain file come before the first one that starts at byte `start` or later.

    Reads the file up to there, so this is for places that somebody asks for; what was counted once is remembered.
    """
    if start == 0:
        return 0
    known = _NEWLINES.setdefault(path, [(0, 0)])
    position, count = known[bisect.bisect_right(known, (start - 1, start)) - 1]
    with open_raw(path) as raw:
        raw.seek(position)
        while position < start - 1 and (data := raw.read(min(CHUNK_BYTES, start - 1 - position))):
            count += data.count(b"\n")
            position += len(data)
    if (position, count) not in known:
        bisect.insort(known, (position, count))
    return count + 1
