"""Document shards, and attribute shards beside them.

A document shard is Parquet with the Dolma fields; metadata is a JSON column. A shard of attributes has the rows of one
document shard, in its order, under the same file name: …/documents/00003.parquet has its `language` attributes in
…/attributes/language/00003.parquet. Everything streams: writers hold one row group, readers one small batch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from ponente.store.paths import absolute, join
from ponente.store.shards import (
    BATCH_BYTES,
    ROW_GROUP_BYTES,
    ShardError,
    ShardFormat,
    count_rows,
    read_shard,
    write_shard,
)

_WRITE_BATCH_BYTES = 1 << 20
_WRITE_BATCH_ROWS = 512
_DOCUMENTS = ShardFormat(name="documents", version=1, writer="ponente.store.documents.write_documents")
_ATTRIBUTES = ShardFormat(name="attributes", version=1, writer="ponente.store.documents.write_attributes")
_ID = pa.field("id", pa.string(), nullable=False)
_SCHEMA = pa.schema(
    [
        _ID,
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("created", pa.string()),
        pa.field("added", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text and where it comes from: the record of every room from raw pages to tokens.

    `created` and `added` are ISO 8601 times. `metadata` holds what JSON can say: on disk a tuple becomes a list, and
    NaN becomes null.
    """

    id: str
    text: str
    source: str = ""
    created: str | None = None
    added: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def write_documents(path: str, documents: Iterable[Document], *, row_group_bytes: int = ROW_GROUP_BYTES) -> int:
    """Publishes a document shard at `path`, whole or not at all, and returns the number of documents.

    Args:
        path: a place, usually …/documents/00003.parquet; a shard that is already there stays.
        documents: consumed lazily.
        row_group_bytes: text and metadata held before they are written; the memory needed is a few times that.
    """
    batches = _document_batches(path, documents)
    return write_shard(path, _DOCUMENTS, _SCHEMA, batches, row_group_bytes=row_group_bytes)


def read_documents(path: str, *, batch_bytes: int = BATCH_BYTES) -> Iterator[Document]:
    """The documents of a shard in order, holding about `batch_bytes` of them at a time."""
    row = 0
    for batch in read_shard(path, _DOCUMENTS, batch_bytes=batch_bytes):
        if not batch.schema.equals(_SCHEMA):
            raise ShardError(
                f"found {absolute(path)} with columns {batch.schema.names}; needed {_SCHEMA.names} of type string. "
                "Remove it and run the step that made it again."
            )
        *plain, metadata = (column.to_pylist() for column in batch.columns)
        for id_, text, source, created, added, encoded in zip(*plain, metadata, strict=True):
            yield Document(
                id=id_,
                text=text,
                source=source,
                created=created,
                added=added,
                metadata=_decoded_metadata(path, row, encoded),
            )
            row += 1


def count_documents(path: str) -> int:
    """The number of documents of a shard; reads its footer only."""
    return count_rows(path, _DOCUMENTS)


def write_attributes(
    path: str,
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    schema: pa.Schema,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> int:
    """Publishes an attribute shard at `path`, whole or not at all, and returns its number of rows.

    Args:
        path: a place, usually `attribute_path(document_path, name)`; a shard that is already there stays.
        rows: document id and values, one for each document, in the order of the document shard; consumed lazily.
        schema: the columns of the values; one that a row leaves out is null.

    Example: `write_attributes(path, [("a", {"score": 0.5})], pa.schema({"score": pa.float32()}))`
    """
    if "id" in schema.names:
        raise ShardError("found an attribute column named 'id'; needed another name, as 'id' holds the document's own.")
    whole = pa.schema([_ID, *schema])
    batches = _attribute_batches(path, rows, whole)
    return write_shard(path, _ATTRIBUTES, whole, batches, row_group_bytes=row_group_bytes)


def read_attributes(path: str, *, batch_bytes: int = BATCH_BYTES) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of an attribute shard in order: document id and values by column."""
    for batch in read_shard(path, _ATTRIBUTES, batch_bytes=batch_bytes):
        names = batch.schema.names[1:]
        for id_, *values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield id_, dict(zip(names, values, strict=True))


def count_attributes(path: str) -> int:
    """The number of rows of an attribute shard; reads its footer only."""
    return count_rows(path, _ATTRIBUTES)


def attribute_path(document_path: str, name: str) -> str:
    """Where the attributes `name` of a document shard lie by default.

    Example: `attribute_path("/data/documents/a/00003.parquet", "language")` is
    "/data/attributes/language/a/00003.parquet".
    """
    if not name or name.startswith(".") or "/" in name:
        raise ValueError(f"found attribute name {name!r}; needed a plain name, like 'language'")
    whole = absolute(document_path)
    above, found, below = whole.rpartition("/documents/")
    if not found:
        raise ValueError(
            f"found {whole}, which is in no folder named documents; needed …/documents/….parquet. "
            "Name the folder so, or pair shards by path with join_attributes."
        )
    return join(f"{above}/attributes", name, below)


def read_with_attributes(
    document_path: str, names: Iterable[str]
) -> Iterator[tuple[Document, dict[str, dict[str, Any]]]]:
    """Each document with its attributes by name, from where `attribute_path` says; see `join_attributes`."""
    return join_attributes(document_path, {name: attribute_path(document_path, name) for name in names})


def join_attributes(
    document_path: str, attribute_paths: Mapping[str, str]
) -> Iterator[tuple[Document, dict[str, dict[str, Any]]]]:
    """Each document of a shard with its row of each attribute shard, by the name given to that shard.

    Raises:
        ShardError: the shards differ in their number of rows or, at some row, in the document's id.
    """
    needed = count_documents(document_path)
    for path in attribute_paths.values():
        if (found := count_attributes(path)) != needed:
            raise _mismatch(document_path, path, f"{needed} documents", f"{found} rows")
    readers = [read_attributes(path) for path in attribute_paths.values()]
    for row, (document, *others) in enumerate(zip(read_documents(document_path), *readers, strict=True)):
        joined = {}
        for (name, path), (id_, values) in zip(attribute_paths.items(), others, strict=True):
            if id_ != document.id:
                raise _mismatch(document_path, path, f"id {document.id!r} at row {row}", f"{id_!r} there")
            joined[name] = values
        yield document, joined


def _mismatch(document_path: str, path: str, documents: str, attributes: str) -> ShardError:
    return ShardError(
        f"found {documents} in {absolute(document_path)} but {attributes} in {absolute(path)}; needed one row of "
        "attributes for each document, in the same order. Build these attributes again from these documents."
    )


def _document_batches(path: str, documents: Iterable[Document]) -> Iterator[pa.RecordBatch]:
    columns: list[list[Any]] = [[] for _ in _SCHEMA]
    held_bytes = 0
    for document in documents:
        text, metadata = _encoded(path, document)
        values = (document.id, text, document.source, document.created, document.added, metadata)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        held_bytes += len(text) + len(metadata)
        if held_bytes >= _WRITE_BATCH_BYTES or len(columns[0]) == _WRITE_BATCH_ROWS:
            yield _batch(path, columns, _SCHEMA)
            columns, held_bytes = [[] for _ in _SCHEMA], 0
    if columns[0]:
        yield _batch(path, columns, _SCHEMA)


def _attribute_batches(
    path: str, rows: Iterable[tuple[str, Mapping[str, Any]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    remaining, names = iter(rows), schema.names[1:]
    known = frozenset(names)
    while some := list(islice(remaining, _WRITE_BATCH_ROWS)):
        for id_, values in some:
            if not known.issuperset(values):
                raise ShardError(
                    f"found attributes {sorted(set(values) - known)} of document {id_!r} for {absolute(path)}; needed "
                    f"columns of its schema: {', '.join(names)}. Add them to the schema, or leave them out."
                )
        columns: list[list[Any]] = [[id_ for id_, _ in some]]
        columns += [[values.get(name) for _, values in some] for name in names]
        yield _batch(path, columns, schema)


def _batch(path: str, columns: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for values, column in zip(columns, schema, strict=True):
        try:
            array = pa.array(values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise _misfit(path, column, str(error)) from error
        if not column.nullable and array.null_count:
            raise _misfit(path, column, "None")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _misfit(path: str, column: "pa.Field[Any]", found: str) -> ShardError:
    return ShardError(
        f"found a value that does not fit column {column.name!r} of {absolute(path)} ({found}); needed {column.type}. "
        "Correct the value where it is made."
    )


def _encoded(path: str, document: Document) -> tuple[bytes, bytes]:
    try:
        return document.text.encode(), msgspec.json.encode(document.metadata)
    except UnicodeEncodeError as error:
        raise ShardError(
            f"found {error.object[error.start]!r} in document {document.id!r} for {absolute(path)}; needed text that "
            "UTF-8 can hold, without lone surrogates. Clean it: text.encode('utf-8', 'replace').decode()."
        ) from error
    except TypeError as error:
        raise ShardError(
            f"found metadata of document {document.id!r} for {absolute(path)} that JSON cannot hold ({error}); needed "
            "text, numbers, lists and dicts. Convert it where it is made."
        ) from error


def _decoded_metadata(path: str, row: int, encoded: str) -> dict[str, Any]:
    try:
        metadata: dict[str, Any] = msgspec.json.decode(encoded)
    except msgspec.DecodeError as error:
        raise ShardError(
            f"found metadata at row {row} of {absolute(path)} that is not JSON ({error}); needed an object. "
            "Remove the shard and run the step that made it again."
        ) from error
    return metadata
