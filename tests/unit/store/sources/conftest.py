"""What tests of sources share: reading whole splits, and making files of every kind."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from ponente.store.sources.readers import reader_of
from ponente.store.sources.source import BadRow, SourceConfig
from ponente.store.sources.text import TxtUnit
from ponente.store.sources.units import plan_units
from ponente.store.sources.url import UrlSourceConfig


@dataclass
class Found:
    """All that reading gave."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)  # of the good rows
    bad: list[BadRow] = field(default_factory=list)
    next_row: int = 0
    source_bytes: int = 0

    def take(self, source: SourceConfig, unit: Any, fields: Mapping[str, Any], skip: int = 0) -> None:
        for batch in source.read(unit, fields, skip=skip):
            assert batch.rows or batch.bad, "an empty batch"
            assert list(batch.values) == list(fields)
            for name, values in batch.values.items():
                assert len(values) == len(batch.rows)
                self.values.setdefault(name, []).extend(values)
            self.rows += batch.rows
            self.places += [batch.place(row) for row in batch.rows]
            assert all(batch.place(bad.row) == (bad.path, bad.line) for bad in batch.bad)
            self.bad += batch.bad
            self.next_row = batch.next_row
            self.source_bytes += batch.source_bytes

    @property
    def texts(self) -> list[str]:
        return self.values.get("text", [])

    @property
    def lines(self) -> list[int]:
        return [line for _, line in self.places]


ReadUrls = Callable[..., Found]


@pytest.fixture(scope="session")
def read_urls() -> ReadUrls:
    """`read_urls("x.jsonl")` reads all units of these urls, one after another, and gives what was found."""
    return _read_urls


def _read_urls(
    *urls: str,
    fields: Mapping[str, Any] | None = None,
    skip: int = 0,
    txt_unit: TxtUnit = TxtUnit.LINE,
    **sizes: int,
) -> Found:
    source, found = UrlSourceConfig(train_urls=urls, txt_unit=txt_unit), Found()
    wanted = {"text": str} if fields is None else fields
    units = plan_units(source.files("train"), lambda path: reader_of(path, txt_unit), **sizes)
    for unit in units:
        assert json.loads(json.dumps(unit)) == unit
        found.take(source, unit, wanted, skip)
    return found


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="session")
def compress() -> dict[str, Callable[[bytes], bytes]]:
    """From a compression's ending to its function."""
    return {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstd}


@pytest.fixture(scope="session")
def json_lines() -> Callable[..., bytes]:
    """Records as JSON lines."""
    return lambda *records: b"".join(json.dumps(record).encode() + b"\n" for record in records)
