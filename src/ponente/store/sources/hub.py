"""Datasets through the `datasets` library: units, fingerprints and rows.

A streaming dataset is read by its own shards (files, or row groups of few Parquet files), a prepared one by contiguous
ranges of rows. What the library finds wrong with a dataset is said again in our words, with what to do.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

import datasets  # type: ignore[import-untyped]
import fsspec
import pyarrow as pa
from datasets.data_files import EmptyDatasetError  # type: ignore[import-untyped]
from datasets.exceptions import (  # type: ignore[import-untyped]
    DataFilesNotFoundError,
    DatasetNotFoundError,
    DatasetsError,
)

from ponente.store.paths import protocol_of
from ponente.store.sources.columns import check_columns, column_values
from ponente.store.sources.files import state_of
from ponente.store.sources.fingerprints import fingerprint, fingerprints_of
from ponente.store.sources.lines import rest_is_lost
from ponente.store.sources.rows import FileRows, Piece, SourceError, gathered, lost_file
from ponente.store.sources.source import BadRow, Fingerprint, RowBatch, Unit
from ponente.store.sources.units import SPLIT_BYTES
from ponente.store.sources.wanted import Wanted

_FEW_SHARDS = 64  # row groups are shards of their own where files are fewer
_MAX_UNITS = 1024  # where sizes are not known
_BATCH_ROWS = 512

logger = logging.getLogger(__name__)


class HubDataset(Protocol):
    """What names a dataset: the fields of HfSourceConfig."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...


def names_of_splits(source: HubDataset) -> list[str]:
    """The splits that a dataset has, as it calls them."""
    if _is_saved(source.id):
        return list(_saved(source.id))
    _refuse_missing_folder(source.id)
    with _saying_what_to_do(source):
        return list(datasets.get_dataset_split_names(source.id, source.name, revision=source.revision))


def plan(source: HubDataset, split: str, *, target_bytes: int = SPLIT_BYTES) -> list[Unit]:
    """The units of a split."""
    data = _load(source, split)
    if isinstance(data, datasets.Dataset):
        total, rows = data.data.nbytes, data.num_rows
        count = min(max(1, -(-total // target_bytes)), max(1, rows))
        bounds = [index * rows // count for index in range(count + 1)]
        return [
            {"split": split, "start": bounds[index], "stop": bounds[index + 1], "bytes": total // count}
            for index in range(count)
        ]
    total = _known_bytes(source, split)
    shards = data.num_shards
    count = min(shards, max(1, -(-total // target_bytes)) if total else _MAX_UNITS)
    return [{"split": split, "shard": index, "shards": count, "bytes": total // count} for index in range(count)]


def fingerprints(source: HubDataset, split: str) -> list[Fingerprint]:
    """The state of the files that a split is read from."""
    if _is_saved(source.id):
        names = [str(Path(file["filename"]).resolve()) for file in _load(source, split).cache_files]
        return fingerprints_of([state_of(name) for name in names])
    return [_file_fingerprint(path) for path in _data_files(source, split)]


def read(source: HubDataset, unit: Unit, fields: Mapping[str, Any], skip: int) -> Iterator[RowBatch]:
    """The rows of a unit from number `skip` on."""
    data = _load(source, unit["split"])
    if isinstance(data, datasets.Dataset):
        place, offset = f"{source.id}:{unit['split']}", unit["start"]
        part: Any = data.select(range(unit["start"], unit["stop"]))
    else:
        place, offset = f"{source.id}:{unit['split']}:shard {unit['shard'] + 1} of {unit['shards']}", 0
        part = data.shard(num_shards=unit["shards"], index=unit["shard"])
    reader = _TableReader(part, offset)
    return gathered(lambda _: reader, [Piece(path=place)], fields, skip)


class _TableReader:
    """Reads a part of a dataset as if it were a file."""

    def __init__(self, part: Any, offset: int) -> None:
        self._part, self._offset = part, offset

    def split(self, path: str, size: int, target_bytes: int) -> list[Piece]:
        return [Piece(path=path, bytes=size)]

    def read(self, piece: Piece, fields: Mapping[str, Any], skip: int) -> Iterator[FileRows]:
        wanted, row = Wanted(fields), 0
        try:
            for table in self._part.with_format("arrow").iter(batch_size=_BATCH_ROWS):
                check_columns(piece.path, table.schema, fields)
                for batch in table.to_batches():
                    if batch.num_rows:
                        yield self._stretch(piece, batch, wanted, row, skip)
                        row += batch.num_rows
        except SourceError:
            raise
        except (pa.ArrowException, DatasetsError, ValueError) as error:
            yield lost_file(piece.path, self._offset + row + 1, row, rest_is_lost(error, "the rest of this shard"))

    def _stretch(self, piece: Piece, batch: pa.RecordBatch, wanted: Wanted, row: int, skip: int) -> FileRows:
        next_row, line = row + batch.num_rows, self._offset + row + 1
        if next_row <= skip:
            return FileRows(path=piece.path, first_row=row, next_row=next_row, source_bytes=batch.nbytes)
        values, good, faults = column_values(batch, wanted)
        return FileRows(
            path=piece.path,
            first_row=row,
            next_row=next_row,
            lines=range(line, line + batch.num_rows),
            values=values,
            rows=[row + index for index in good],
            bad=[
                BadRow(path=piece.path, line=line + index, error=fault, excerpt="", row=row + index)
                for index, fault in sorted(faults.items())
            ],
            held_bytes=batch.nbytes,
            source_bytes=batch.nbytes,
        )


def _load(source: HubDataset, split: str) -> Any:
    if _is_saved(source.id):
        saved = _saved(source.id)
        if split not in saved:
            raise _unknown_split(source, split, list(saved))
        return saved[split]
    _refuse_missing_folder(source.id)
    return _loaded(source.id, source.name, source.revision, source.stream, split)


@lru_cache(maxsize=16)
def _loaded(id_: str, name: str | None, revision: str | None, stream: bool, split: str) -> Any:
    source = cast(HubDataset, _Named(id_, name, revision, stream))
    with _saying_what_to_do(source):
        data = datasets.load_dataset(id_, name, revision=revision, split=split, streaming=stream)
    if isinstance(data, datasets.IterableDataset) and data.num_shards < _FEW_SHARDS:
        return data.reshard()
    return data


class _Named:
    def __init__(self, id_: str, name: str | None, revision: str | None, stream: bool) -> None:
        self.id, self.name, self.revision, self.stream = id_, name, revision, stream


def _is_saved(id_: str) -> bool:
    return any((Path(id_) / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _saved(id_: str) -> dict[str, Any]:
    found = datasets.load_from_disk(id_)
    return dict(found) if isinstance(found, dict) else {"train": found}


def _refuse_missing_folder(id_: str) -> None:
    looks_local = id_.startswith(("/", ".", "~")) or id_.count("/") > 1
    if looks_local and not Path(id_).expanduser().is_dir():
        raise SourceError(
            f"found no folder {id_}; needed a folder with data files, or the name of a dataset on the hub like "
            "'allenai/c4'. Correct the id."
        )


def _data_files(source: HubDataset, split: str) -> list[str]:
    with _saying_what_to_do(source):
        builder = datasets.load_dataset_builder(source.id, source.name, revision=source.revision)
    files = builder.config.data_files or {}
    names = [part.partition("[")[0].strip() for part in split.split("+")]
    return [str(path) for name in names for path in files.get(name, [])]


def _known_bytes(source: HubDataset, split: str) -> int:
    paths = _data_files(source, split)
    if not paths or any(protocol_of(path) != "file" for path in paths):
        return 0
    return sum(Path(path).stat().st_size for path in paths)


def _file_fingerprint(path: str) -> Fingerprint:
    if protocol_of(path) == "file":
        return fingerprint(state_of(path))
    filesystem, inner = fsspec.core.url_to_fs(path)
    return hub_fingerprint(path, filesystem.info(inner))


def hub_fingerprint(path: str, info: Mapping[str, Any]) -> Fingerprint:
    """The state of a file on the hub: it knows a digest of each, so that a commit to another file changes nothing."""
    large = info.get("lfs") or {}
    digest = large.get("sha256") or info.get("blob_id") or path
    return Fingerprint(path=path, size=int(info.get("size") or 0), digest=str(digest), modified=path)


def _unknown_split(source: HubDataset, split: str, there: list[str]) -> SourceError:
    return SourceError(
        f"found no split {split!r} in dataset {source.id!r}; needed one of: {', '.join(there)}. "
        f"Name it: split_names: {{train: {there[0]}}}."
    )


@contextmanager
def _saying_what_to_do(source: HubDataset) -> Iterator[None]:
    what = f"dataset {source.id!r}" + (f" (config {source.name!r})" if source.name else "")
    try:
        yield
    except DatasetNotFoundError as error:
        raise SourceError(
            f"found no {what} that we may read ({error}); needed one that exists and is open to this account. Check "
            f"the name; if it is gated or private, ask for access at https://huggingface.co/datasets/{source.id} and "
            "set HF_TOKEN."
        ) from error
    except (DataFilesNotFoundError, EmptyDatasetError) as error:
        raise SourceError(
            f"found no data files in {what} ({error}); needed .jsonl, .json, .parquet, .txt or .csv files. "
            "Code that comes with a dataset is never run: give the folder of its data files, or their urls."
        ) from error
    except ConnectionError as error:
        raise SourceError(
            f"found {what} out of reach ({error}); needed the hub, or a local folder. Check the network, or download "
            "it where there is one and give the folder as id."
        ) from error
    except (DatasetsError, ValueError, RuntimeError) as error:
        raise SourceError(
            f"found that {what} cannot be loaded ({error}); needed a config and a split that it has, and files that "
            "the datasets library reads. Set name, revision or split_names."
        ) from error
