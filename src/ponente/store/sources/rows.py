"""What readers of files hand over: a piece of a file as stretches of rows, gathered into the batches of a unit.

A piece is a file or a part of one. Rows are numbered from 0 within their piece here, and through the whole unit there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from ponente.config.errors import UserError
from ponente.store.sources.lines import lines_before
from ponente.store.sources.source import BadRow, RowBatch

EXCERPT_CHARS = 200
_GATHER_BYTES = 1 << 20


class SourceError(UserError, ValueError):
    """A source that cannot be read as it is configured."""


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, or a part of one: what `start` and `stop` count (bytes, row groups, sequences) is its reader's affair."""

    path: str
    bytes: int = 0
    start: int = 0
    stop: int | None = None  # None: to the end


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRows:
    """Some rows of a piece: those numbered from `first_row` up to `next_row`, less the bad and the skipped ones."""

    path: str
    first_row: int
    next_row: int
    lines: Sequence[int] = ()  # of row `first_row + i`
    offset: int = 0  # where `lines` begin to count: at the line that this byte of the file leads to
    values: dict[str, list[Any]] = field(default_factory=dict)
    rows: Sequence[int] = ()  # of the values
    bad: list[BadRow] = field(default_factory=list)
    held_bytes: int = 0  # about what the values take
    source_bytes: int = 0


class FileReader(Protocol):
    """Reads the files of one format."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        """A large file as pieces of about `target_bytes`; one piece where it cannot be split. May refuse the file."""

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        """The rows of a piece, at least those from number `skip` on.

        Stretches that are skipped are handed over too, without values, so that the last `next_row` is always the
        number of rows of the piece. Rows below `skip` may be handed over; they are left out later.
        """


class Places:
    """From a row's number to its file and line."""

    def __init__(self, stretches: Sequence[tuple[int, FileRows]]) -> None:
        self._starts = [base + rows.first_row for base, rows in stretches]
        self._stretches = [(rows.path, rows.lines, rows.offset) for _, rows in stretches]

    def __call__(self, row: int) -> tuple[str, int]:
        index = bisect_right(self._starts, row) - 1
        path, lines, offset = self._stretches[index]
        return path, lines_before(path, offset) + lines[row - self._starts[index]]


def gathered(
    reader_of: Callable[[str], FileReader], pieces: Iterable[Piece], fields: Mapping[str, Any], skip: int
) -> Iterator[RowBatch]:
    """The batches of a unit of pieces, from row `skip` on; small stretches are joined."""
    held: list[tuple[int, FileRows]] = []
    base = held_bytes = passed_bytes = 0
    for piece in pieces:
        next_base, left = base, max(0, skip - base)
        for rows in reader_of(piece.path).read(piece, fields, left):
            next_base = base + rows.next_row
            kept = after_skipped(rows, left)
            if not kept.rows and not kept.bad:
                passed_bytes += rows.source_bytes
                continue
            held.append((base, kept))
            held_bytes += rows.held_bytes
            if held_bytes >= _GATHER_BYTES:
                yield _batch(held, list(fields), passed_bytes)
                held, held_bytes, passed_bytes = [], 0, 0
        base = next_base
    if held:
        yield _batch(held, list(fields), passed_bytes)


def _batch(held: list[tuple[int, FileRows]], names: list[str], passed_bytes: int) -> RowBatch:
    values: dict[str, list[Any]] = {name: [] for name in names}
    for _, rows in held:
        for name, some in rows.values.items():
            values[name] += some
    base, last = held[-1]
    return RowBatch(
        values=values,
        rows=[base + row for base, rows in held for row in rows.rows],
        place=Places(held),
        bad=[_shifted(bad, base) for base, rows in held for bad in rows.bad],
        next_row=base + last.next_row,
        source_bytes=passed_bytes + sum(rows.source_bytes for _, rows in held),
    )


def _shifted(bad: BadRow, base: int) -> BadRow:
    return msgspec.structs.replace(bad, row=base + bad.row) if base else bad


def after_skipped(rows: FileRows, skip: int) -> FileRows:
    """`rows` without those numbered below `skip`."""
    if skip <= rows.first_row:
        return rows
    kept = [index for index, row in enumerate(rows.rows) if row >= skip]
    return replace(
        rows,
        rows=[rows.rows[index] for index in kept],
        values={name: [values[index] for index in kept] for name, values in rows.values.items()},
        bad=[bad for bad in rows.bad if bad.row >= skip],
    )


def excerpt(data: bytes | str) -> str:
    """How a row begins."""
    text = data if isinstance(data, str) else data[: 4 * EXCERPT_CHARS].decode(errors="replace")
    return text[:EXCERPT_CHARS].rstrip()


def lost_file(path: str, line: int, row: int, error: str, source_bytes: int = 0) -> FileRows:
    """One bad row that stands for a file, or for the rest of it."""
    bad = BadRow(path=path, line=line, error=error, excerpt="", row=row)
    return FileRows(path=path, first_row=row, next_row=row + 1, lines=(line,), bad=[bad], source_bytes=source_bytes)


def empty_file(path: str) -> FileRows:
    """The one bad row that a file without a byte counts as."""
    return lost_file(path, 0, 0, "found an empty file; needed rows. Copy it again from its origin, or leave it out.")
