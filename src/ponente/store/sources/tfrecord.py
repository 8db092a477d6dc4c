"""TFRecord files of tf.train.Example, in file order, plain or .gz: each record a row, integers as numpy arrays.

A record is a length, its checksum, the data, its checksum. Data that fails its checksum is a bad row; a length that
does, or a file that ends within a record, loses the rest of the file.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c
import msgspec

from ponente.store.sources.examples import decode_examples
from ponente.store.sources.lines import BLOCK_BYTES, MAX_LINE_BYTES, rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, empty_file, lost_file
from ponente.store.sources.source import BadRow
from ponente.store.sources.streams import ByteStream, DamagedError
from ponente.store.sources.wanted import Wanted

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_BROKEN_DATA = (
    "found a record that does not match its checksum; needed the bytes that were written. "
    "Copy the file again from its origin."
)


def masked_crc(data: bytes) -> int:
    """The checksum that stands beside `data` in a TFRecord: CRC-32C, masked as TensorFlow does it."""
    crc = google_crc32c.value(data)
    return int((((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


class Record(msgspec.Struct, frozen=True):
    """The data of one record, and the checksum that stands beside it."""

    data: bytes
    checksum: int


class TfRecordReader:
    """Reads .tfrecord."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return [Piece(path=path, bytes=size)]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        wanted, stream = Wanted(fields), ByteStream(piece.path)
        held: list[Record] = []
        row = held_bytes = taken = 0
        try:
            for record in _records(stream):
                held.append(record)
                held_bytes += len(record.data)
                if held_bytes >= BLOCK_BYTES:
                    yield _stretch(piece, held, wanted, row, skip, stream.taken - taken)
                    row, held, held_bytes, taken = row + len(held), [], 0, stream.taken
        except DamagedError as error:
            yield _stretch(piece, held, wanted, row, skip, stream.taken - taken)
            row += len(held)
            yield lost_file(piece.path, row + 1, row, rest_is_lost(error))
            return
        yield _stretch(piece, held, wanted, row, skip, stream.taken - taken)
        if not stream.taken:
            yield empty_file(piece.path)


def _records(stream: ByteStream) -> Iterator[Record]:
    """The records of a stream; raises DamagedError where the frame breaks."""
    parts: list[bytes] = []
    held, needed = 0, _HEADER.size
    for chunk in stream:
        parts.append(chunk)
        held += len(chunk)
        if held < needed:
            continue
        data, position = b"".join(parts), 0
        while True:
            record, needed = _record_at(data, position)
            if record is None:
                break
            yield record
            position += needed
        parts, held = [data[position:]], len(data) - position
    if held:
        raise DamagedError("it ends in the middle of a record")


def _record_at(data: bytes, position: int) -> tuple[Record | None, int]:
    """The record at a position and its size with frame; or None and the bytes that are needed to know more."""
    if len(data) - position < _HEADER.size:
        return None, _HEADER.size
    length, checksum = _HEADER.unpack_from(data, position)
    if masked_crc(data[position : position + 8]) != checksum:
        raise DamagedError("the length of a record does not match its checksum")
    if length > MAX_LINE_BYTES:
        raise DamagedError(f"a record of {length} bytes, more than {MAX_LINE_BYTES}")
    size, begin = _HEADER.size + length + _FOOTER.size, position + _HEADER.size
    if len(data) - position < size:
        return None, size
    return Record(data[begin : begin + length], _FOOTER.unpack_from(data, begin + length)[0]), size


def _stretch(piece: Piece, records: list[Record], wanted: Wanted, row: int, skip: int, source_bytes: int) -> FileRows:
    first, next_row = row + min(max(0, skip - row), len(records)), row + len(records)
    kept = records[first - row :]
    whole = [index for index, record in enumerate(kept) if masked_crc(record.data) == record.checksum]
    values, good, found = decode_examples([kept[index].data for index in whole], wanted)
    faults = {index: _BROKEN_DATA for index in range(len(kept))}
    for index in good:
        del faults[whole[index]]
    faults |= {whole[index]: fault for index, fault in found.items()}
    return FileRows(
        path=piece.path,
        first_row=first,
        next_row=next_row,
        lines=range(first + 1, next_row + 1),
        values=values,
        rows=[first + whole[index] for index in good],
        bad=[
            BadRow(path=piece.path, line=first + index + 1, error=fault, excerpt="", row=first + index)
            for index, fault in sorted(faults.items())
        ],
        held_bytes=sum(len(record.data) for record in kept),
        source_bytes=source_bytes,
    )
