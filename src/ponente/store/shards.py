"""The Parquet envelope of every shard: zstd, page checksums, and a footer that names format, version and rows.

In: small record batches, gathered into row groups. Out: a file published whole; read back, small batches in bounded
memory. A shard that is truncated, corrupt, foreign or from a newer ponente is a ShardError that names the file.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from ponente.config.errors import UserError
from ponente.store.paths import absolute, protocol_of
from ponente.store.volume import publishing

ROW_GROUP_BYTES = 16 << 20
BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 4096
_FORMAT, _VERSION, _ROWS = "ponente.format", "ponente.version", "ponente.rows"


class ShardError(UserError, ValueError):
    """A shard, or a line of one, that is not what its reader or writer needs."""


@dataclass(frozen=True, kw_only=True)
class ShardFormat:
    """What the footer of a kind of shard says; `version` is the newest that this code knows, and the one it writes."""

    name: str
    version: int
    writer: str  # the function that makes such shards, for messages


def open_input(path: str) -> pa.NativeFile:
    """Opens a file for reading, with a cursor of its own."""
    if protocol_of(path) == "file":
        return pa.OSFile(path, "rb")
    filesystem, inner = fsspec.core.url_to_fs(path)
    if protocol_of(path) == "memory":  # where all readers of a file share one cursor
        return pa.BufferReader(filesystem.cat_file(inner))
    return pa.PythonFile(filesystem.open(inner, "rb"), "r")


def open_output(path: str) -> pa.NativeFile:
    """Opens a file for writing; give it the private path of `store.volume.publishing`."""
    if protocol_of(path) == "file":
        return pa.OSFile(path, "wb")
    filesystem, inner = fsspec.core.url_to_fs(path)
    return pa.PythonFile(filesystem.open(inner, "wb"), "w")


@contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Turns what pyarrow raises about bytes that do not decode into a ShardError; a failing disk stays an OSError."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise _damage(path, error) from error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None:
            raise
        raise _damage(path, error) from error


def _damage(path: str, error: Exception) -> ShardError:
    return ShardError(
        f"found {path} truncated or corrupt ({error}); needed a whole shard. "
        "Remove it and run the step that made it again, or copy it again from its origin."
    )


def write_shard(
    path: str,
    shard_format: ShardFormat,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> int:
    """Publishes a shard at `path` and returns its number of rows.

    Args:
        path: a place; a shard that is already there stays.
        schema: of every batch.
        batches: small ones, consumed lazily.
        row_group_bytes: what is held before it is written; the memory needed is a few times that.
    """
    rows = 0
    with publishing(absolute(path)) as private, open_output(private) as sink:
        writer = pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=False,  # zstd finds repeats; a dictionary of texts only takes memory
            write_statistics=False,
            write_page_checksum=True,
        )
        with writer:
            for group in _row_groups(batches, row_group_bytes):
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
            footer = {_FORMAT: shard_format.name, _VERSION: str(shard_format.version), _ROWS: str(rows)}
            writer.add_key_value_metadata(footer)
    return rows


def _row_groups(batches: Iterable[pa.RecordBatch], row_group_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= row_group_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def read_shard(path: str, shard_format: ShardFormat, *, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of a shard in order, in batches of about `batch_bytes`."""
    whole, rows = absolute(path), 0
    with (
        naming_damage(whole),
        open_input(whole) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        expected = _checked_rows(whole, shard_format, file.metadata)
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            fitting = batch_bytes * group.num_rows // max(1, group.total_byte_size)
            batch_rows = min(max(1, fitting), _MAX_BATCH_ROWS)
            for batch in file.iter_batches(batch_size=batch_rows, row_groups=[index], use_threads=False):
                rows += batch.num_rows
                yield batch
    if rows != expected:
        raise _wrong_rows(whole, found=rows, needed=expected)


def count_rows(path: str, shard_format: ShardFormat) -> int:
    """The number of rows of a shard; reads its footer only."""
    whole = absolute(path)
    with naming_damage(whole), open_input(whole) as source:
        return _checked_rows(whole, shard_format, pq.read_metadata(source))


def _checked_rows(path: str, shard_format: ShardFormat, metadata: pq.FileMetaData) -> int:
    footer = {
        key.decode(): value.decode() for key, value in (metadata.metadata or {}).items() if key != b"ARROW:schema"
    }
    if _FORMAT not in footer:
        raise _foreign(path, shard_format, metadata.schema.names)
    if footer[_FORMAT] != shard_format.name:
        raise ShardError(
            f"found {path}, a shard of {footer[_FORMAT]}; needed a shard of {shard_format.name}. "
            "Give the path of such a one."
        )
    version, rows = footer.get(_VERSION, ""), footer.get(_ROWS, "")
    if not version.isdecimal() or not rows.isdecimal():
        raise _damage(path, ValueError(f"its footer says version {version!r} and rows {rows!r}"))
    if int(version) > shard_format.version:
        raise ShardError(
            f"found {path} in version {version} of the format {shard_format.name}; this ponente reads versions up to "
            f"{shard_format.version}. Upgrade ponente, or write the shard again with this one."
        )
    if int(rows) != metadata.num_rows:
        raise _wrong_rows(path, found=metadata.num_rows, needed=int(rows))
    return int(rows)


def _wrong_rows(path: str, *, found: int, needed: int) -> ShardError:
    return ShardError(
        f"found {found} rows in {path}; needed {needed}, as its footer says. "
        "Remove it and run the step that made it again, or copy it again from its origin."
    )


def _foreign(path: str, shard_format: ShardFormat, columns: list[str]) -> ShardError:
    return ShardError(
        f"found {path}, a Parquet file that ponente did not write (columns {', '.join(columns)}); needed a shard of "
        f"{shard_format.name}. Convert it: read its rows with pyarrow.parquet and pass them to {shard_format.writer}."
    )
