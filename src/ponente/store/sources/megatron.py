"""Megatron pairs, PREFIX.bin with tokens and PREFIX.idx with where each sequence lies: each sequence a row, in order.

The index, as Megatron-LM and GPT-NeoX (Pythia) write it: magic, version 1, a type code, the counts of sequences and of
document bounds, then sizes (int32), byte pointers (int64) and document bounds (int64); newer ones may add a byte a
sequence. Only integers are taken: the two programs disagree about the codes of floats.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponente.store.sources.files import index_path
from ponente.store.sources.lines import BLOCK_BYTES, rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, SourceError, lost_file
from ponente.store.sources.streams import open_raw, read_at
from ponente.store.sources.wanted import Wanted, is_numbers, without_none

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
_BATCH_ROWS = 4096


class Index(NamedTuple):
    """The header of an .idx file."""

    dtype: np.dtype[Any]
    sequences: int

    def sizes(self, file: BinaryIO, start: int, stop: int) -> NDArray[np.int64]:
        """The lengths in tokens of some sequences."""
        data = read_at(file, _HEADER.size + 4 * start, 4 * (stop - start))
        return np.frombuffer(data, "<i4").astype(np.int64)

    def pointers(self, file: BinaryIO, start: int, stop: int) -> NDArray[np.int64]:
        """Where in the .bin file some sequences begin, in bytes."""
        begin = _HEADER.size + 4 * self.sequences
        return np.frombuffer(read_at(file, begin + 8 * start, 8 * (stop - start)), "<i8")


class MegatronReader:
    """Reads .bin with the .idx beside it; a piece counts sequences."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        with open_raw(index_path(path)) as file:
            index = _read_index(index_path(path), file)
            count = min(max(1, -(-size // target_bytes)), max(1, index.sequences))
            bounds = [number * index.sequences // count for number in range(count + 1)]
            starts = [0, *(int(index.pointers(file, bound, bound + 1)[0]) for bound in bounds[1:-1]), size]
        return [
            Piece(path=path, bytes=max(0, next_byte - byte), start=start, stop=stop)
            for start, stop, byte, next_byte in zip(bounds, bounds[1:], starts, starts[1:], strict=False)
        ]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        name = _tokens_field(piece.path, fields)
        with open_raw(index_path(piece.path)) as index_file, open_raw(piece.path) as file:
            index = _read_index(index_path(piece.path), index_file)
            stop = index.sequences if piece.stop is None else piece.stop
            sizes = index.sizes(index_file, piece.start, stop) * index.dtype.itemsize
            starts = index.pointers(index_file, piece.start, stop)
            whole = _count_whole(starts, sizes, file.seek(0, 2))
            row = min(skip, whole)
            yield FileRows(path=piece.path, first_row=0, next_row=row)
            while row < whole:
                count = max(1, int(np.searchsorted(np.cumsum(sizes[row : row + _BATCH_ROWS]), BLOCK_BYTES)))
                end = min(row + count, whole)
                arrays = _sequences(file, starts[row:end], sizes[row:end], index.dtype)
                yield _stretch(piece, name, row, arrays)
                row = end
        if whole < len(sizes):
            fault = rest_is_lost("the .bin ends before this sequence, or its index is wrong")
            yield lost_file(piece.path, piece.start + whole + 1, whole, fault)


def _read_index(path: str, file: BinaryIO) -> Index:
    header = read_at(file, 0, _HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise SourceError(
            f"found {path}, which does not begin as a Megatron index (MMIDIDX); needed the .idx that was written with "
            "its .bin. Copy both again from their origin, or write them again with --dataset-impl mmap."
        )
    _, version, code, sequences, documents = _HEADER.unpack(header)
    if version != 1 or code not in _TYPES:
        raise SourceError(
            f"found {path} with version {version} and type code {code}; needed version 1 and an integer type "
            f"({', '.join(map(str, _TYPES))}). Write the pair again with a current Megatron-LM or GPT-NeoX."
        )
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if (found := file.seek(0, 2)) < needed:
        raise SourceError(
            f"found {path} truncated, {found} bytes; needed {needed} for its {sequences} sequences. "
            "Copy it again from its origin."
        )
    return Index(np.dtype(_TYPES[code]).newbyteorder("<"), sequences)


def _tokens_field(path: str, fields: Mapping[str, Any]) -> str:
    if len(fields) == 1:
        ((name, type_),) = fields.items()
        if is_numbers(type_) or without_none(type_) is Any:
            return name
    raise SourceError(
        f"found {path}, which holds token ids only; needed rows with {Wanted(fields).describe()}. "
        "Use format: prebuilt for it, with no loss weights."
    )


def _count_whole(starts: NDArray[np.int64], sizes: NDArray[np.int64], file_bytes: int) -> int:
    """How many sequences come before the first that does not lie in the file."""
    broken = np.flatnonzero((sizes < 0) | (starts < 0) | (starts + sizes > file_bytes))
    return int(broken[0]) if broken.size else len(sizes)


def _stretch(piece: Piece, name: str, row: int, arrays: list[NDArray[Any]]) -> FileRows:
    first, held = piece.start + row, sum(array.nbytes for array in arrays)
    return FileRows(
        path=piece.path,
        first_row=row,
        next_row=row + len(arrays),
        lines=range(first + 1, first + len(arrays) + 1),
        values={name: arrays},
        rows=range(row, row + len(arrays)),
        held_bytes=held,
        source_bytes=held,
    )


def _sequences(
    file: BinaryIO, starts: NDArray[np.int64], sizes: NDArray[np.int64], dtype: np.dtype[Any]
) -> list[NDArray[Any]]:
    """The sequences that lie at these bytes; read at once where they lie in a row."""
    if np.array_equal(starts[1:], starts[:-1] + sizes[:-1]):
        data = read_at(file, int(starts[0]), int(sizes.sum()))
        bounds = (starts - starts[0]) // dtype.itemsize
        return np.split(np.frombuffer(data, dtype), bounds[1:])
    return [
        np.frombuffer(read_at(file, int(start), int(size)), dtype) for start, size in zip(starts, sizes, strict=True)
    ]
