"""Every reader, on whole and damaged files, from every row on: the rows, numbers and places of a full read."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ponente.store.sources.text import TxtUnit
from ponente.store.sources.tfrecord import masked_crc
from ponente.store.sources.url import UrlSourceConfig

BAD_LINES = {3: b"bad", 4: b"", 17: b'{"text": 7}', 30: b" "}


def json_rows(count: int) -> list[bytes]:
    rows = [json.dumps({"text": f"{number} {'x' * (number % 9)}"}).encode() for number in range(count)]
    return [BAD_LINES.get(number, row) for number, row in enumerate(rows)]


def jsonl(path: Path) -> None:
    path.write_bytes(b"\n".join(json_rows(40)))


def many_blocks(path: Path) -> None:
    path.write_bytes(b"\n".join([row.replace(b"x", b"x" * 9000) for row in json_rows(60)]))


def truncated_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\n".join(json_rows(60)))[:-60])


def array(path: Path) -> None:
    path.write_bytes(
        b"[" + b",\n".join(row if row.strip() else b"null" for row in json_rows(40) if row != b"bad") + b"]"
    )


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_bytes(b"\n".join(b"\xff" if number % 7 == 3 else b"a" * (number % 5) for number in range(40)))


def parquet(path: Path) -> None:
    damaged_parquet(path, 1)


def parquet_with_a_bad_end(path: Path) -> None:
    damaged_parquet(path, 3)


def damaged_parquet(path: Path, damaged_group: int) -> None:
    texts = [None if number % 11 == 5 else str(number) for number in range(60)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=16, use_dictionary=False, write_page_checksum=True)
    group = pq.read_metadata(path).row_group(damaged_group).column(0)
    data = bytearray(path.read_bytes())
    data[group.data_page_offset + group.total_compressed_size // 2] ^= 255
    path.write_bytes(data)


def tfrecord(path: Path) -> None:
    data = bytearray()
    for number in range(30):
        # Example {features {feature {key: "text", value {bytes_list {value: two digits}}}}}
        message = b"\x0a\x10\x0a\x0e\x0a\x04text\x12\x06\x0a\x04\x0a\x02" + f"{number:02}".encode()
        length = len(message).to_bytes(8, "little")
        data += length + masked_crc(length).to_bytes(4, "little")
        data += message + (masked_crc(message) ^ (number == 7)).to_bytes(4, "little")
    path.write_bytes(data[:-10])


FILES: dict[str, Callable[[Path], None]] = {
    "a.jsonl": jsonl,
    "b.jsonl": many_blocks,
    "c.jsonl.gz": truncated_gzip,
    "d.json": array,
    "e.json": jsonl,
    "f.jsonl": empty,
    "g.txt": text,
    "h.parquet": parquet,
    "hh.parquet": parquet_with_a_bad_end,
    "i.parquet": empty,
    "j.tfrecord": tfrecord,
    "k.tfrecord": empty,
    "l.jsonl.zst": empty,
}


def read(source: UrlSourceConfig, unit: Any, fields: dict[str, Any], skip: int) -> tuple[list[Any], list[Any], int]:
    rows, bad, next_row = [], [], 0
    for batch in source.read(unit, fields, skip=skip):
        (values,) = batch.values.values() or ([],)
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        rows += list(zip(batch.rows, plain, map(batch.place, batch.rows), strict=True))
        bad += batch.bad
        next_row = batch.next_row
    return rows, bad, next_row


def assert_every_skip_gives_the_tail(source: UrlSourceConfig, fields: dict[str, Any], *, step: int = 1) -> None:
    (unit,) = source.units("train")
    rows, bad, count = read(source, unit, fields, 0)
    numbers = sorted([row for row, _, _ in rows] + [one.row for one in bad])
    assert len(set(numbers)) == len(numbers) and numbers[-1] < count
    for skip in [*range(0, count + 3, step), 10**9]:
        tail = [row for row in rows if row[0] >= skip], [one for one in bad if one.row >= skip]
        assert read(source, unit, fields, skip)[:2] == tail, skip
        if tail[0] or tail[1]:
            assert read(source, unit, fields, skip)[2] == count


@pytest.mark.parametrize(("name", "txt_unit"), [*((name, TxtUnit.LINE) for name in FILES), ("g.txt", TxtUnit.DOCUMENT)])
def test_reading_on_from_any_row_gives_what_a_full_read_gives_from_there(
    tmp_path: Path, name: str, txt_unit: TxtUnit
) -> None:
    FILES[name](tmp_path / name)
    source = UrlSourceConfig(train_urls=(f"{tmp_path}/{name}",), txt_unit=txt_unit)
    assert_every_skip_gives_the_tail(source, {"text": str})


def test_reading_on_from_any_row_works_across_all_files_of_a_unit(tmp_path: Path) -> None:
    for name, make in FILES.items():
        make(tmp_path / name)
    source = UrlSourceConfig(train_urls=(str(tmp_path),))
    assert_every_skip_gives_the_tail(source, {"text": str}, step=3)
    assert_every_skip_gives_the_tail(replace(source, txt_unit=TxtUnit.DOCUMENT), {"text": str}, step=7)


@pytest.mark.parametrize("cut", [0, 7])
def test_reading_on_from_any_sequence_of_a_megatron_pair(tmp_path: Path, cut: int) -> None:
    sizes = [number % 4 for number in range(30)]
    pointers = np.cumsum([0, *sizes])[:-1] * 2
    tokens = np.arange(sum(sizes), dtype="<u2").tobytes()
    (tmp_path / "a.bin").write_bytes(tokens[: len(tokens) - cut])
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + (30).to_bytes(8, "little") + bytes(8)
    (tmp_path / "a.idx").write_bytes(header + np.array(sizes, "<i4").tobytes() + pointers.astype("<i8").tobytes())
    assert_every_skip_gives_the_tail(UrlSourceConfig(train_urls=(f"{tmp_path}/a",)), {"ids": list[int]})


def test_reading_on_from_any_row_of_a_byte_range(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl")
    unit = {"pieces": [{"path": f"{tmp_path}/a.jsonl", "start": 100, "stop": 500}], "bytes": 400}
    source = UrlSourceConfig(train_urls=("x",))
    rows, bad, count = read(source, unit, {"text": str}, 0)
    assert count > 10
    for skip in range(count + 2):
        tail = [row for row in rows if row[0] >= skip], [one for one in bad if one.row >= skip]
        assert read(source, unit, {"text": str}, skip)[:2] == tail
