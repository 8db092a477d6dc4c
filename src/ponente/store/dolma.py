"""Dolma JSON lines in and out, at the border: .jsonl, .jsonl.gz, .jsonl.zst (and .json.gz, .json.zst).

In: one object a line. `text` is needed; a missing `id` becomes FILE:LINE; unknown top-level keys move into metadata,
where a key that is there already with another value is a bad line. Out: the Dolma fields, equal bytes for equal
documents. Attribute lines have spans: {"id": …, "attributes": {NAME: [[start, end, score], …]}}.
"""

import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO, Literal, TypeVar, cast

import msgspec
import pyarrow as pa

from ponente.store.documents import Document
from ponente.store.paths import absolute, basename
from ponente.store.shards import ShardError, naming_damage, open_input, open_output
from ponente.store.volume import publishing

Compression = Literal["gzip", "zstd"]
_COMPRESSIONS: dict[str, Compression | None] = {
    ".jsonl": None,
    ".jsonl.gz": "gzip",
    ".jsonl.zst": "zstd",
    ".json.gz": "gzip",
    ".json.zst": "zstd",
}
_CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 256 << 20  # a file that is not lines must not fill memory
_GZIP_LEVEL = 6  # pyarrow's own writer has only 9: half again the time for a fraction of a percent
_BOM = b"\xef\xbb\xbf"
_STRING_FIELDS = ("id", "text", "source", "created", "added")
_SPAN = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())])

Record = TypeVar("Record")
OnBadLine = Callable[[ShardError], None]
Spans = Mapping[str, Sequence[Mapping[str, Any]]]


class _AttributeLine(msgspec.Struct):
    id: str
    attributes: dict[str, list[tuple[int, int, float]]]


def raise_bad_line(error: ShardError) -> None:
    """What readers do with a bad line unless told otherwise."""
    raise error


def read_dolma(
    path: str, *, source: str = "", on_bad_line: OnBadLine = raise_bad_line, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Document]:
    """The documents of a Dolma file in order, in bounded memory.

    Args:
        path: a place; its ending says how it is compressed. Several gzip members or zstd frames are read as one.
        source: for documents that name none.
        on_bad_line: takes the error of a line that is no document; if it returns, the line is left out. A file that
            is truncated or corrupt, or has a line longer than `max_line_bytes`, is always an error.
    """
    whole = absolute(path)
    name, lines = basename(whole), _lines(whole, max_line_bytes)
    return _records(whole, lines, lambda line, number: _document(line, f"{name}:{number}", source), on_bad_line)


def write_dolma(path: str, documents: Iterable[Document]) -> int:
    """Publishes a Dolma file at `path`, whole or not at all, and returns the number of documents.

    A file that is already there stays. Fields that are None are left out.
    """
    return _write_lines(path, (_document_line(document) for document in documents))


def read_dolma_attributes(
    path: str, *, on_bad_line: OnBadLine = raise_bad_line
) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """The rows of a Dolma attribute file, as `store.documents.write_attributes` takes them with `span_schema`."""
    whole, decode = absolute(path), msgspec.json.Decoder(_AttributeLine).decode
    return _records(whole, _lines(whole, MAX_LINE_BYTES), lambda line, _: _spans(decode(line)), on_bad_line)


def write_dolma_attributes(path: str, rows: Iterable[tuple[str, Spans]]) -> int:
    """Publishes a Dolma attribute file of rows as `store.documents.read_attributes` gives them."""
    return _write_lines(path, ({"id": id_, "attributes": _triples(spans)} for id_, spans in rows))


def span_schema(names: Iterable[str]) -> pa.Schema:
    """The columns of attributes that are spans of a document: character start and end, and a score."""
    return pa.schema({name: pa.list_(_SPAN) for name in names})


def _compression(path: str) -> Compression | None:
    for ending, compression in _COMPRESSIONS.items():
        if path.endswith(ending):
            return compression
    raise ShardError(
        f"found {path}, whose ending is not one of JSON lines; needed one of: {', '.join(_COMPRESSIONS)}. Rename it."
    )


def _records(
    path: str,
    lines: Iterable[tuple[int, bytes]],
    parse: Callable[[bytes, int], Record],
    on_bad_line: OnBadLine,
) -> Iterator[Record]:
    for number, line in lines:
        try:
            record = parse(line, number)
        except (ValueError, RecursionError) as error:
            on_bad_line(_bad_line(path, number, line, error))
            continue
        yield record


def _bad_line(path: str, number: int, line: bytes, error: Exception) -> ShardError:
    shown = line[:80].decode(errors="replace").rstrip()
    bad = ShardError(
        f"{path}:{number}: found {shown!r} ({error}); needed one JSON object with the Dolma fields. "
        "Correct or remove the line, or read with on_bad_line."
    )
    bad.__cause__ = error
    return bad


def _lines(path: str, max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1."""
    number = 0
    with naming_damage(path), _open_lines(path) as reader:
        while line := reader.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes:
                raise ShardError(
                    f"{path}:{number}: found a line longer than {max_line_bytes} bytes; needed one document a line. "
                    "Split the document, or check that the file is JSON lines."
                )
            if number == 1:
                line = line.removeprefix(_BOM)
            if line.strip():
                yield number, line


@contextmanager
def _open_lines(path: str) -> Iterator[BinaryIO]:
    compression = _compression(path)
    with open_input(path) as raw:
        if compression and not raw.size():  # pyarrow takes no bytes for no lines, but it is a failed copy
            raise ShardError(f"found {path} empty; needed {compression} data. Copy it again from its origin.")
        stream = pa.CompressedInputStream(raw, compression) if compression else raw
        with io.BufferedReader(cast(io.RawIOBase, stream), _CHUNK_BYTES) as reader:
            yield reader


def _document(line: bytes, default_id: str, default_source: str) -> Document:
    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON {type(fields).__name__}, not an object")
    for key in _STRING_FIELDS:
        if not isinstance(value := fields.get(key), str | None):
            raise ValueError(f"{key} is {value!r}, not a string")
    if not isinstance(metadata := fields.pop("metadata", None), dict | None):
        raise ValueError(f"metadata is {metadata!r}, not an object")
    id_, text, source, created, added = (fields.pop(key, None) for key in _STRING_FIELDS)
    if text is None:
        raise ValueError("it has no text")
    return Document(
        id=default_id if id_ is None else id_,
        text=text,
        source=default_source if source is None else source,
        created=created,
        added=added,
        metadata=_merged(metadata or {}, fields),
    )


def _merged(metadata: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
    for key, value in unknown.items():
        if metadata.setdefault(key, value) != value:
            raise ValueError(f"{key} is {value!r} but metadata.{key} is {metadata[key]!r}")
    return metadata


def _document_line(document: Document) -> dict[str, Any]:
    line: dict[str, Any] = {"id": document.id, "text": document.text, "source": document.source}
    if document.created is not None:
        line["created"] = document.created
    if document.added is not None:
        line["added"] = document.added
    return line | {"metadata": document.metadata}


def _spans(line: _AttributeLine) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    named = {
        name: [{"start": start, "end": end, "score": score} for start, end, score in spans]
        for name, spans in line.attributes.items()
    }
    return line.id, named


def _triples(spans: Spans) -> dict[str, list[list[Any]]]:
    return {name: [[span["start"], span["end"], span["score"]] for span in some] for name, some in spans.items()}


def _write_lines(path: str, lines: Iterable[dict[str, Any]]) -> int:
    whole, count = absolute(path), 0
    compression, encode = _compression(whole), msgspec.json.Encoder().encode
    with publishing(whole) as private, open_output(private) as sink, _compressor(sink, compression) as stream:
        for line in lines:
            try:
                encoded = encode(line)
            except (UnicodeEncodeError, TypeError) as error:
                raise ShardError(
                    f"found a value in {line['id']!r} that JSON cannot hold ({error}), for {whole}; needed UTF-8 text, "
                    "numbers, lists and dicts. Correct it where it is made."
                ) from error
            stream.write(encoded + b"\n")
            count += 1
    return count


def _compressor(sink: pa.NativeFile, compression: Compression | None) -> AbstractContextManager[Any]:
    if compression == "gzip":
        return gzip.GzipFile(filename="", fileobj=sink, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0)
    if compression == "zstd":
        return cast(AbstractContextManager[Any], pa.CompressedOutputStream(sink, compression))
    return nullcontext(sink)
