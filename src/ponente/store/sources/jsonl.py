"""JSON lines: one object a line, decoded to the wanted fields only.

Blank lines are no rows. A block with a line that does not decode is gone through again, to name its bad rows. A large
plain file is split in byte ranges; a range owns the lines that start in it. (msgspec's `decode_lines` is not faster,
and takes objects that span lines or share one.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from ponente.store.sources.lines import Block, line_blocks, lines_before, owned_chunks
from ponente.store.sources.rows import FileRows, Piece, empty_file, excerpt
from ponente.store.sources.source import BadRow
from ponente.store.sources.streams import ByteStream, compression_of
from ponente.store.sources.wanted import Wanted

ParseBlock = Callable[[Block, int, Piece], FileRows]


class JsonLinesReader:
    """Reads .jsonl and .ndjson."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return byte_ranges(path, size, target_bytes)

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        return read_lines(piece, LineDecoder(fields), skip)


def byte_ranges(path: str, size: int, target_bytes: int) -> list[Piece]:
    """A plain file of lines as ranges of equal size; a compressed one is not split."""
    count = 1 if compression_of(path) else max(1, -(-size // target_bytes))
    if count == 1:
        return [Piece(path=path, bytes=size)]
    bounds = [index * size // count for index in range(count + 1)]
    return [Piece(path=path, bytes=stop - start, start=start, stop=stop) for start, stop in pairwise(bounds)]


def read_lines(piece: Piece, parse: ParseBlock, skip: int) -> Iterator[FileRows]:
    """The rows that `parse` makes of the lines of a piece, from number `skip` on."""
    if piece.stop is None:
        stream = ByteStream(piece.path)
        yield from read_blocks(piece, stream, stream, parse, skip)
    else:
        stream = ByteStream(piece.path, max(0, piece.start - 1))
        yield from read_blocks(piece, stream, owned_chunks(stream, piece.start, piece.stop), parse, skip)


def read_blocks(
    piece: Piece, stream: ByteStream, chunks: Iterable[bytes], parse: ParseBlock, skip: int
) -> Iterator[FileRows]:
    """Like `read_lines`, of chunks of a stream that was opened already."""
    row = taken = 0
    block = None
    for block in line_blocks(chunks):
        rows = _read_block(piece, block, row, parse, skip)
        yield replace(rows, held_bytes=block.size, source_bytes=stream.taken - taken)
        row, taken = rows.next_row, stream.taken
    if block is None and piece.stop is None:
        yield empty_file(piece.path)


def _read_block(piece: Piece, block: Block, row: int, parse: ParseBlock, skip: int) -> FileRows:
    if block.fault:
        return _lost_row(piece, block, row)
    if row < skip and row + len(block.lines) <= skip:
        return FileRows(path=piece.path, first_row=row, next_row=row + sum(map(bool, map(bytes.strip, block.lines))))
    return parse(block, row, piece)


def _lost_row(piece: Piece, block: Block, row: int) -> FileRows:
    bad = bad_line(piece, block.first_line, block.fault, block.lines[0], row)
    return FileRows(
        path=piece.path, first_row=row, next_row=row + 1, lines=(block.first_line,), offset=piece.start, bad=[bad]
    )


def bad_line(piece: Piece, line: int, error: str, data: bytes, row: int) -> BadRow:
    """A bad row at a line that is counted from where its piece begins."""
    from_start = lines_before(piece.path, piece.start) + line
    return BadRow(path=piece.path, line=from_start, error=error, excerpt=excerpt(data), row=row)


class LineDecoder:
    """Turns blocks of JSON lines to rows."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._wanted = Wanted(fields)
        self._decoder = msgspec.json.Decoder(self._wanted.row_type)

    def __call__(self, block: Block, row: int, piece: Piece) -> FileRows:
        try:
            decoded = list(map(self._decoder.decode, block.lines))
        except (ValueError, RecursionError):
            return self._one_by_one(block, row, piece)
        next_row = row + len(decoded)
        return FileRows(
            path=piece.path,
            first_row=row,
            next_row=next_row,
            lines=range(block.first_line, block.first_line + len(decoded)),
            offset=piece.start,
            values=self._wanted.columns(decoded),
            rows=range(row, next_row),
        )

    def _one_by_one(self, block: Block, first_row: int, piece: Piece) -> FileRows:
        decoded: list[Any] = []
        rows: list[int] = []
        lines: list[int] = []
        bad: list[BadRow] = []
        for number, line in enumerate(block.lines, block.first_line):
            if not line.strip():
                continue
            row = first_row + len(lines)
            lines.append(number)
            try:
                decoded.append(self._decoder.decode(line))
                rows.append(row)
            except (ValueError, RecursionError) as error:
                bad.append(bad_line(piece, number, self._wanted.fault_of_json(line, error), line, row))
        return FileRows(
            path=piece.path,
            first_row=first_row,
            next_row=first_row + len(lines),
            lines=lines,
            offset=piece.start,
            values=self._wanted.columns(decoded),
            rows=rows,
            bad=bad,
        )
