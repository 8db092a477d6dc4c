"""Plain text files: each line a row that has one field, or the whole file one row.

The text stands under whichever field is wanted, as such files name none. Line ends (CRLF too) are no part of a line's
text, and become newlines within a whole file's.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from ponente.store.sources.jsonl import ParseBlock, bad_line, byte_ranges, read_lines
from ponente.store.sources.lines import BOM, MAX_LINE_BYTES, Block, rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, SourceError, empty_file, lost_file
from ponente.store.sources.source import BadRow
from ponente.store.sources.streams import ByteStream, DamagedError
from ponente.store.sources.wanted import Wanted, without_none


class TxtUnit(Enum):
    """What one row of a .txt file is."""

    LINE = "line"
    DOCUMENT = "document"


class TextLinesReader:
    """Reads .txt, a row a line; blank lines are no rows."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return byte_ranges(path, size, target_bytes)

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        return read_lines(piece, _line_parser(text_field(piece.path, fields)), skip)


class TextDocumentReader:
    """Reads .txt, a row a file."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return [Piece(path=path, bytes=size)]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        name, stream, data = text_field(piece.path, fields), ByteStream(piece.path), bytearray()
        if skip:
            yield FileRows(path=piece.path, first_row=0, next_row=1)
            return
        try:
            for chunk in stream:
                data += chunk
                if len(data) > self._max_bytes:
                    yield lost_file(piece.path, 0, 0, self._too_long(), stream.taken)
                    return
        except DamagedError as error:
            yield lost_file(piece.path, 0, 0, rest_is_lost(error, "the whole document"), stream.taken)
            return
        yield _document(piece, name, bytes(data), stream.taken)

    def _too_long(self) -> str:
        return (
            f"found a text longer than {self._max_bytes} bytes; needed a document that fits in memory. "
            "Split the file, or read it by lines (txt_unit: line)."
        )


def text_field(path: str, fields: Mapping[str, Any]) -> str:
    """The one wanted field that plain text can be."""
    if len(fields) == 1:
        ((name, type_),) = fields.items()
        if without_none(type_) in (str, Any):
            return name
    raise SourceError(
        f"found {path}, which is plain text; needed rows with {Wanted(fields).describe()}. "
        "Give files with fields (.jsonl, .parquet), or use a format that wants one text."
    )


def _document(piece: Piece, name: str, data: bytes, taken: int) -> FileRows:
    if not data:
        return empty_file(piece.path)
    data = data.removeprefix(BOM)
    try:
        text = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        bad = bad_line(piece, data.count(b"\n", 0, error.start) + 1, _not_utf8(error), data, 0)
        return FileRows(path=piece.path, first_row=0, next_row=1, lines=(bad.line,), bad=[bad], source_bytes=taken)
    return FileRows(
        path=piece.path,
        first_row=0,
        next_row=1,
        lines=(1,),
        values={name: [text]},
        rows=(0,),
        held_bytes=len(data),
        source_bytes=taken,
    )


def _line_parser(name: str) -> ParseBlock:
    def parse(block: Block, first_row: int, piece: Piece) -> FileRows:
        texts: list[str] = []
        rows: list[int] = []
        lines: list[int] = []
        bad: list[BadRow] = []
        for number, line in enumerate(block.lines, block.first_line):
            if not line.strip():
                continue
            row = first_row + len(lines)
            lines.append(number)
            try:
                texts.append(line.removesuffix(b"\r").decode())
                rows.append(row)
            except UnicodeDecodeError as error:
                bad.append(bad_line(piece, number, _not_utf8(error), line, row))
        return FileRows(
            path=piece.path,
            first_row=first_row,
            next_row=first_row + len(lines),
            lines=lines,
            offset=piece.start,
            values={name: texts},
            rows=rows,
            bad=bad,
        )

    return parse


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"found bytes that are not UTF-8 ({error}); needed UTF-8 text. Convert the file, or remove the row."
