"""Parquet files, a row group at a time, only the columns that are wanted; our own document shards are such files too.

Rows are numbered as the footer counts them. Where a row group breaks, what was read of it is kept, one bad row stands
for its rest, and the next group is read.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ponente.store.documents import count_documents
from ponente.store.shards import ShardError, naming_damage, open_input
from ponente.store.sources.columns import check_columns, column_values
from ponente.store.sources.lines import rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, empty_file, lost_file
from ponente.store.sources.source import BadRow
from ponente.store.sources.wanted import Wanted

_BATCH_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_MAX_BATCH_ROWS = 4096
_FORMAT_KEY, _DOCUMENTS = b"ponente.format", b"documents"


class ParquetReader:
    """Reads .parquet."""

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        whole = [Piece(path=path, bytes=size)]
        if size <= target_bytes:
            return whole
        try:
            with _opened(path) as file:
                groups = [_compressed_bytes(file.metadata, index) for index in range(file.metadata.num_row_groups)]
        except ShardError:  # its reader says so, as a bad row
            return whole
        return _group_ranges(path, groups, target_bytes) or whole

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        wanted, row = Wanted(fields), 0
        with ExitStack() as stack:
            try:
                file = stack.enter_context(_opened(piece.path))
            except ShardError as error:
                yield _unreadable(piece, error)
                return
            columns = check_columns(piece.path, file.schema_arrow, fields)
            if (file.metadata.metadata or {}).get(_FORMAT_KEY) == _DOCUMENTS:
                count_documents(piece.path)
            for group in range(piece.start, _stop(piece, file)):
                yield from _read_group(piece, file, group, columns, wanted, row, skip)
                row += file.metadata.row_group(group).num_rows


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    with open_input(path) as source:
        with naming_damage(path):
            file = pq.ParquetFile(source, page_checksum_verification=True, buffer_size=_BUFFER_BYTES)
        with file:
            yield file


def _unreadable(piece: Piece, error: ShardError) -> FileRows:
    with open_input(piece.path) as source:
        if not source.size():
            return empty_file(piece.path)
    reason = error.__cause__ or error
    return lost_file(piece.path, 0, 0, rest_is_lost(reason, "all of it"), piece.bytes)


def _stop(piece: Piece, file: pq.ParquetFile) -> int:
    return file.metadata.num_row_groups if piece.stop is None else piece.stop


def _compressed_bytes(metadata: pq.FileMetaData, index: int) -> int:
    group = metadata.row_group(index)
    return sum(group.column(column).total_compressed_size for column in range(group.num_columns))


def _group_ranges(path: str, groups: list[int], target_bytes: int) -> list[Piece]:
    pieces, start, held = [], 0, 0
    for index, group_bytes in enumerate(groups):
        if held and held + group_bytes > target_bytes:
            pieces.append(Piece(path=path, bytes=held, start=start, stop=index))
            start, held = index, 0
        held += group_bytes
    return [*pieces, Piece(path=path, bytes=held, start=start, stop=len(groups))] if groups else []


def _read_group(
    piece: Piece, file: pq.ParquetFile, index: int, columns: list[str], wanted: Wanted, first_row: int, skip: int
) -> Iterator[FileRows]:
    group = file.metadata.row_group(index)
    next_row, before = first_row + group.num_rows, _rows_before(piece, file)
    group_bytes = _compressed_bytes(file.metadata, index)
    if next_row <= skip:
        yield FileRows(path=piece.path, first_row=first_row, next_row=next_row, source_bytes=group_bytes)
        return
    row = first_row
    batches = file.iter_batches(
        batch_size=_batch_rows(group, columns), row_groups=[index], columns=columns, use_threads=False
    )
    try:
        with naming_damage(piece.path):
            for batch in batches:
                source_bytes = group_bytes * batch.num_rows // max(1, group.num_rows)
                yield _stretch(piece, batch, wanted, row, before, skip, source_bytes)
                row += batch.num_rows
    except ShardError as error:
        fault = rest_is_lost(error.__cause__, "the rest of its row group")
        bad = BadRow(path=piece.path, line=before + row + 1, error=fault, excerpt="", row=row)
        yield FileRows(
            path=piece.path,
            first_row=row,
            next_row=next_row,
            lines=range(before + row + 1, before + next_row + 1),
            bad=[bad],
        )


def _rows_before(piece: Piece, file: pq.ParquetFile) -> int:
    return sum(file.metadata.row_group(index).num_rows for index in range(piece.start))


def _batch_rows(group: pq.RowGroupMetaData, columns: list[str]) -> int:
    sizes = [group.column(index) for index in range(group.num_columns)]
    total = sum(one.total_uncompressed_size for one in sizes if one.path_in_schema.split(".")[0] in columns)
    return min(max(1, _BATCH_BYTES * group.num_rows // max(1, total)), _MAX_BATCH_ROWS)


def _stretch(
    piece: Piece, batch: pa.RecordBatch, wanted: Wanted, row: int, before: int, skip: int, source_bytes: int
) -> FileRows:
    next_row, skipped = row + batch.num_rows, min(max(0, skip - row), batch.num_rows)
    values, good, faults = column_values(batch.slice(skipped), wanted)
    first = row + skipped
    bad = [
        BadRow(path=piece.path, line=before + first + index + 1, error=fault, excerpt="", row=first + index)
        for index, fault in sorted(faults.items())
    ]
    return FileRows(
        path=piece.path,
        first_row=first,
        next_row=next_row,
        lines=range(before + first + 1, before + next_row + 1),
        values=values,
        rows=[first + index for index in good],
        bad=bad,
        held_bytes=batch.nbytes,
        source_bytes=source_bytes,
    )
