"""Files to units of work: small files grouped, large ones split; a function of the files alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ponente.store.sources.files import SourceFile, in_threads
from ponente.store.sources.rows import FileReader, Piece
from ponente.store.sources.source import Unit

GROUP_BYTES = 8 << 20
GROUP_FILES = 1024
SPLIT_BYTES = 64 << 20


def plan_units(
    files: Sequence[SourceFile],
    reader_of: Callable[[str], FileReader],
    *,
    group_bytes: int = GROUP_BYTES,
    group_files: int = GROUP_FILES,
    split_bytes: int = SPLIT_BYTES,
) -> list[Unit]:
    """The files as units, in order.

    Args:
        group_bytes: consecutive pieces are joined up to this size.
        group_files: and up to this number.
        split_bytes: a larger file is split about so, if its format can be.
    """
    split = in_threads(lambda file: reader_of(file.path).split(file.path, file.size, split_bytes), files)
    pieces = [piece for some in split for piece in some]
    return [_unit(group) for group in _groups(pieces, group_bytes, group_files)]


def pieces_of(unit: Unit) -> list[Piece]:
    """The pieces that a unit of `plan_units` is made of."""
    return msgspec.convert(unit["pieces"], list[Piece])


def _unit(pieces: list[Piece]) -> dict[str, Any]:
    return {"pieces": msgspec.to_builtins(pieces), "bytes": sum(piece.bytes for piece in pieces)}


def _groups(pieces: list[Piece], group_bytes: int, group_files: int) -> Iterator[list[Piece]]:
    held: list[Piece] = []
    held_bytes = 0
    for piece in pieces:
        if held and (held_bytes + piece.bytes > group_bytes or len(held) == group_files):
            yield held
            held, held_bytes = [], 0
        held.append(piece)
        held_bytes += piece.bytes
    if held:
        yield held
