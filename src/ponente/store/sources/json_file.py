"""Files named .json: an array of objects, one object, or JSON lines under another name.

An array or an object that spans lines is read whole, so its size has a limit; JSON lines have none.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from ponente.store.sources.jsonl import LineDecoder, bad_line, read_blocks
from ponente.store.sources.lines import BLOCK_BYTES, BOM, rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, SourceError, lost_file
from ponente.store.sources.source import BadRow
from ponente.store.sources.streams import ByteStream, DamagedError, compression_of, open_raw
from ponente.store.sources.wanted import Wanted

MAX_JSON_BYTES = 1 << 30


class JsonFileReader:
    """Reads .json."""

    def __init__(self, max_bytes: int = MAX_JSON_BYTES) -> None:
        self._max_bytes = max_bytes

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        if size > self._max_bytes and not compression_of(path):
            with open_raw(path) as raw:
                if _first_mark(raw.read(BLOCK_BYTES)) == b"[":
                    raise self._too_large(path)
        return [Piece(path=path, bytes=size)]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        stream = ByteStream(piece.path)
        chunks = iter(stream)
        head = b""
        try:
            while not _first_mark(head) and (chunk := next(chunks, b"")):
                head += chunk
            is_array = _first_mark(head) == b"["
            data = self._whole(piece.path, head, chunks) if is_array or _is_broken_line(head) else None
        except DamagedError as error:
            yield lost_file(piece.path, 0, 0, rest_is_lost(error, "all of it"), stream.taken)
            return
        wanted = Wanted(fields)
        if data is not None and is_array:
            yield from _array(piece, wanted, data, stream.taken, skip)
        elif data is not None and _is_json(data):
            yield _elements(piece, wanted, [(data, 1)], 0, skip, stream.taken)
        else:
            lines = chain([head], chunks) if data is None else iter([data])
            yield from read_blocks(piece, stream, (one for one in lines if one), LineDecoder(fields), skip)

    def _whole(self, path: str, head: bytes, chunks: Iterator[bytes]) -> bytes:
        data = bytearray()
        for chunk in chain([head], chunks):
            data += chunk
            if len(data) > self._max_bytes:
                raise self._too_large(path)
        return bytes(data).removeprefix(BOM)

    def _too_large(self, path: str) -> SourceError:
        return SourceError(
            f"found {path}, a JSON array (or an object over many lines) larger than {self._max_bytes} bytes, which "
            "must be held in memory; needed JSON lines at this size. Convert it: jq -c '.[]' FILE.json > FILE.jsonl."
        )


def _first_mark(head: bytes) -> bytes:
    return head.removeprefix(BOM).lstrip()[:1]


def _is_broken_line(head: bytes) -> bool:
    """Whether a file starts with an object that goes on after its first line."""
    line, newline, _ = head.removeprefix(BOM).lstrip().partition(b"\n")
    return bool(newline) and line.startswith(b"{") and not _is_json(line)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return True


def _array(piece: Piece, wanted: Wanted, data: bytes, taken: int, skip: int) -> Iterator[FileRows]:
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        fault = (
            f"found an array that is not JSON ({error}); needed a whole array of objects: all of it is lost. "
            "Correct the file, or copy it again from its origin."
        )
        yield lost_file(piece.path, 0, 0, fault, taken)
        return
    row = held = 0
    some: list[tuple[bytes, int]] = []
    for element, line in _with_lines(data, elements):
        some.append((element, line))
        held += len(element)
        if held >= BLOCK_BYTES:
            yield _elements(piece, wanted, some, row, skip, held)
            taken, row, some, held = taken - held, row + len(some), [], 0
    yield _elements(piece, wanted, some, row, skip, max(0, taken))


def _with_lines(data: bytes, elements: list[msgspec.Raw]) -> Iterator[tuple[bytes, int]]:
    """Each element with the line that it begins at; between elements there are only commas and whitespace."""
    position, line = 0, 1
    for raw in elements:
        element = bytes(raw)
        begin = data.index(element, position)
        line += data.count(b"\n", position, begin)
        yield element, line
        position = begin + len(element)
        line += element.count(b"\n")


def _elements(
    piece: Piece, wanted: Wanted, elements: list[tuple[bytes, int]], first_row: int, skip: int, source_bytes: int
) -> FileRows:
    decode = msgspec.json.Decoder(wanted.row_type).decode
    decoded, rows = [], []
    bad: list[BadRow] = []
    for row, (element, line) in enumerate(elements, first_row):
        if row < skip:
            continue
        try:
            decoded.append(decode(element))
            rows.append(row)
        except (ValueError, RecursionError) as error:
            bad.append(bad_line(piece, line, wanted.fault_of_json(element, error), element, row))
    return FileRows(
        path=piece.path,
        first_row=first_row,
        next_row=first_row + len(elements),
        lines=[line for _, line in elements],
        values=wanted.columns(decoded),
        rows=rows,
        bad=bad,
        held_bytes=sum(len(element) for element, _ in elements),
        source_bytes=source_bytes,
    )
