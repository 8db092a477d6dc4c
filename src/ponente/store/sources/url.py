"""The url source: files of known formats, wherever fsspec finds them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ponente.store.sources.files import SourceFile, index_path, resolve, state_of
from ponente.store.sources.fingerprints import fingerprints_of
from ponente.store.sources.readers import reader_of
from ponente.store.sources.rows import FileReader, SourceError, gathered
from ponente.store.sources.source import Fingerprint, RowBatch, SourceConfig, Unit
from ponente.store.sources.text import TxtUnit
from ponente.store.sources.units import pieces_of, plan_units


@SourceConfig.register_subclass("url")
@dataclass(frozen=True, kw_only=True)
class UrlSourceConfig(SourceConfig):
    """Rows of files: .jsonl .json .txt (plain or .gz .bz2 .zst .xz) .parquet .tfrecord, and Megatron .bin with .idx.

    A url may have braces and globs, or name a folder. A row of a .txt file is a line, or the whole file.
    """

    train_urls: tuple[str, ...] = ()
    validation_urls: tuple[str, ...] = ()
    txt_unit: TxtUnit = TxtUnit.LINE

    def splits(self) -> list[str]:
        return [split for split in ("train", "validation") if self._urls(split)]

    def units(self, split: str) -> list[Unit]:
        return plan_units(self.files(split), self._reader_of)

    def files(self, split: str) -> list[SourceFile]:
        """The files of a split, in order; looks at each."""
        return resolve(self._urls(split))

    def identity(self, split: str) -> dict[str, Any]:
        return {"type": "url", "txt_unit": self.txt_unit.value}  # places do not matter: content does

    def fingerprints(self, split: str) -> list[Fingerprint]:
        return fingerprints_of(self.fingerprinted(split))

    def fingerprinted(self, split: str) -> list[SourceFile]:
        """The files whose state is that of a split: those it reads, and their indexes."""
        return [one for file in self.files(split) for one in _with_index(file)]

    def read(self, unit: Unit, fields: Mapping[str, Any], *, skip: int = 0) -> Iterator[RowBatch]:
        return gathered(self._reader_of, pieces_of(unit), fields, skip)

    def _reader_of(self, path: str) -> FileReader:
        return reader_of(path, self.txt_unit)

    def _urls(self, split: str) -> tuple[str, ...]:
        urls = {"train": self.train_urls, "validation": self.validation_urls}
        if split not in urls:
            raise SourceError(f"found split {split!r}; needed one of: {', '.join(urls)}.")
        found = urls[split]
        return (found,) if isinstance(found, str) else tuple(found)


def _with_index(file: SourceFile) -> list[SourceFile]:
    if not file.path.endswith(".bin"):
        return [file]
    return [file, state_of(index_path(file.path))]
