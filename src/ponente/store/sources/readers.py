"""Which reader belongs to which file: by the ending of its name.

Users add formats of their own with `register_reader`; where work runs in other processes, the module that does so must
be imported there too, as any module of a user's config is.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ponente.store.sources.json_file import JsonFileReader
from ponente.store.sources.jsonl import JsonLinesReader
from ponente.store.sources.lines import BLOCK_BYTES
from ponente.store.sources.rows import FileReader, FileRows, Piece, SourceError, excerpt
from ponente.store.sources.source import BadRow
from ponente.store.sources.streams import COMPRESSIONS, name_of
from ponente.store.sources.text import TextDocumentReader, TextLinesReader, TxtUnit
from ponente.store.sources.wanted import Wanted

RowsOfFile = Callable[[str], Iterable[Mapping[str, Any]]]
_SHARD_NUMBER = re.compile(r"-\d+-of-\d+|\.b\d+$")  # the second: of the Pile by the step that a file begins with
_BATCH_ROWS = 1024


def _parquet() -> FileReader:
    from ponente.store.sources.parquet import ParquetReader

    return ParquetReader()


def _tfrecord() -> FileReader:
    try:
        from ponente.store.sources.tfrecord import TfRecordReader
    except ImportError as error:
        raise _not_installed(".tfrecord", error) from error
    return TfRecordReader()


def _megatron() -> FileReader:
    try:
        from ponente.store.sources.megatron import MegatronReader
    except ImportError as error:
        raise _not_installed(".bin", error) from error
    return MegatronReader()


def _not_installed(ending: str, error: ImportError) -> SourceError:
    return SourceError(
        f"found a {ending} file, but {error.name} is not installed; needed it to read such files. "
        "Install it: pip install 'ponente[train]'."
    )


_COMPRESSED = ("", *COMPRESSIONS)
_READERS: dict[str, Callable[[], FileReader]] = {
    **{f".jsonl{compression}": JsonLinesReader for compression in _COMPRESSED},
    **{f".ndjson{compression}": JsonLinesReader for compression in _COMPRESSED},
    **{f".json{compression}": JsonFileReader for compression in _COMPRESSED},
    **{f".txt{compression}": TextLinesReader for compression in _COMPRESSED},
    ".parquet": _parquet,
    ".tfrecord": _tfrecord,
    ".tfrecord.gz": _tfrecord,
    ".tfrecords": _tfrecord,
    ".tfrecords.gz": _tfrecord,
    ".bin": _megatron,
}


def register_reader(ending: str, reader: RowsOfFile | FileReader) -> None:
    """Teaches the url source another file format.

    Args:
        ending: of file names, with its dots: ".csv", ".mine.gz". One that is known already is replaced.
        reader: from the path of a file to its rows as dicts, in order, always the same; or a whole FileReader, which
            can also split and skip.

    Example: `register_reader(".csv", lambda path: csv.DictReader(open(path, newline="")))`
    """
    if not ending.startswith(".") or len(ending) == 1:
        raise ValueError(f"found {ending!r} as the ending of file names; needed one with its dot, like '.csv'")
    whole = _RowsReader(reader) if callable(reader) else reader
    _READERS[ending.lower()] = lambda: whole


def ending_of(path: str) -> str | None:
    """The known ending of a file's name, or None: "x.tfrecord-00-of-10" and "x.tfrecord.b500" have ".tfrecord"."""
    name = _SHARD_NUMBER.sub("", name_of(path))
    known = [ending for ending in _READERS if name.endswith(ending)]
    return max(known, key=len) if known else None


def known_endings() -> list[str]:
    """The endings that files may have."""
    return list(_READERS)


def reader_of(path: str, txt_unit: TxtUnit = TxtUnit.LINE) -> FileReader:
    """The reader of a file."""
    ending = ending_of(path)
    if ending is None:
        raise SourceError(
            f"found {path}, whose ending is not known; needed one of: {', '.join(known_endings())}. "
            "Rename it, or teach its format with ponente.store.sources.readers.register_reader."
        )
    make = _READERS[ending]
    if make is TextLinesReader and txt_unit is TxtUnit.DOCUMENT:
        return TextDocumentReader()
    return make()


class _RowsReader:
    """A reader from a user's function."""

    def __init__(self, rows_of: RowsOfFile) -> None:
        self._rows_of = rows_of

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return [Piece(path=path, bytes=size)]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        wanted, first = Wanted(fields), 0
        some: list[Mapping[str, Any]] = []
        for row in self._rows_of(piece.path):
            some.append(row)
            if len(some) == _BATCH_ROWS:
                yield _converted(piece, wanted, some, first, skip, 0)
                first, some = first + len(some), []
        yield _converted(piece, wanted, some, first, skip, piece.bytes)


def _converted(
    piece: Piece, wanted: Wanted, some: list[Mapping[str, Any]], first: int, skip: int, source_bytes: int
) -> FileRows:
    converted, rows = [], []
    bad: list[BadRow] = []
    for row, found in enumerate(some, first):
        if row < skip:
            continue
        try:
            converted.append(wanted.convert(found))
            rows.append(row)
        except msgspec.ValidationError as error:
            fault = wanted.fault_of_values(found, error)
            bad.append(BadRow(path=piece.path, line=row + 1, error=fault, excerpt=excerpt(repr(found)), row=row))
    return FileRows(
        path=piece.path,
        first_row=first,
        next_row=first + len(some),
        lines=range(first + 1, first + len(some) + 1),
        values=wanted.columns(converted),
        rows=rows,
        bad=bad,
        held_bytes=BLOCK_BYTES,
        source_bytes=source_bytes,
    )
