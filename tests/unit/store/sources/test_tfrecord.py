"""TFRecord files: integers in file order, and no record is taken that does not match its checksum."""

import base64
import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.store.sources.tfrecord import masked_crc
from ponente.store.sources.varints import decode_many, decode_varints
from ponente.store.volume import volume_of

IDS = {"input_ids": list[int]}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def integers(values: Sequence[int]) -> bytes:
    return field(3, field(1, b"".join(map(varint, values))))


def unpacked(values: Sequence[int]) -> bytes:
    return field(3, b"".join(b"\x08" + varint(value) for value in values))


def floats(values: Sequence[float]) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def texts(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def example(**features: bytes) -> bytes:
    entries = [field(1, field(1, name.encode()) + field(2, data)) for name, data in features.items()]
    return field(1, b"".join(entries))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def records(rows: Sequence[Sequence[int]]) -> bytes:
    return b"".join(record(example(other=floats([1.0]), input_ids=integers(row))) for row in rows)


GOLDEN = (  # by the packages protobuf and tfrecord
    "VAAAAAAAAABfUUWHClIKJgoJaW5wdXRfaWRzEhkaFwoVAAF/gAHQiAPboAn///////////8BChcKB3dlaWdodHMSDBIKCggAAAA/"
    "AACAPwoPCgR0ZXh0EgcKBQoDaMOpwJZN5zYAAAAAAAAAT1eM7wo0Cg8KCWlucHV0X2lkcxICGgAKEwoHd2VpZ2h0cxIIEgYKBAAA"
    "AEAKDAoEdGV4dBIECgIKAMwTzwk="
)
ROWS = [[number * 7919 % 50_000 for number in range(start, start + 200)] for start in range(300)]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints_decode_to_what_was_encoded(values: list[int]) -> None:
    assert decode_varints(b"".join(map(varint, values))).tolist() == values


@given(st.lists(st.lists(st.integers(0, 2**17)), min_size=1))
def test_many_buffers_decode_as_each_alone(rows: list[list[int]]) -> None:
    buffers = [b"".join(map(varint, row)) for row in rows]
    assert [row.tolist() for row in decode_many(buffers)] == rows


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02"])
def test_a_varint_that_is_cut_off_or_too_long_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="number"):
        decode_varints(data)
    with pytest.raises(ValueError, match="number"):
        decode_many([data, b"\x01"])


@pytest.mark.parametrize(
    "name",
    [
        *("a.tfrecord", "a.tfrecord.gz", "a.tfrecords"),
        *("pile.tfrecord-00000-of-00010", "a.tfrecord-00003-of-00010.gz", "pile.tfrecord.b19500"),
    ],
)
def test_records_come_as_arrays_in_file_order(folder: str, name: str, read_urls: Callable[..., Any]) -> None:
    data = records(ROWS)
    volume_of(folder).create(f"{folder}/{name}", gzip.compress(data) if name.endswith(".gz") else data)
    found = read_urls(f"{folder}/{name}", fields=IDS)
    assert [row.tolist() for row in found.values["input_ids"]] == ROWS
    assert all(isinstance(row, np.ndarray) and row.dtype == np.int64 for row in found.values["input_ids"])
    assert (found.rows, found.lines, found.bad) == (list(range(300)), list(range(1, 301)), [])


@pytest.mark.parametrize("url", ["pile.tfrecord.b*", "."])
def test_files_that_are_numbered_by_steps_come_in_the_order_of_steps(
    folder: str, url: str, read_urls: Callable[..., Any]
) -> None:
    for step in (1000, 0, 500, 10000):
        volume_of(folder).create(f"{folder}/pile.tfrecord.b{step}", records([[step]]))
    found = read_urls(f"{folder}/{url}", fields=IDS)
    assert np.concatenate(found.values["input_ids"]).tolist() == [0, 500, 1000, 10000]


def test_a_record_that_another_program_wrote_is_read(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.tfrecord").write_bytes(base64.b64decode(GOLDEN))
    fields = {"input_ids": list[int], "weights": list[float], "text": str}
    found = read_urls(f"{tmp_path}/a.tfrecord", fields=fields)
    assert found.bad == []
    assert [row.tolist() for row in found.values["input_ids"]] == [[0, 1, 127, 128, 50256, 151643, -1], []]
    assert [row.tolist() for row in found.values["weights"]] == [[0.5, 1.0], [2.0]]
    assert found.values["text"] == ["hé", ""]


def test_a_list_may_be_packed_in_several_parts(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    parts = field(3, field(1, varint(1) + varint(300)) + field(1, varint(7)))
    (tmp_path / "a.tfrecord").write_bytes(record(example(input_ids=parts)))
    found = read_urls(f"{tmp_path}/a.tfrecord", fields=IDS)
    assert [row.tolist() for row in found.values["input_ids"]] == [[1, 300, 7]]


def test_lists_may_be_unpacked_and_features_may_be_texts_or_missing(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    rows = [
        example(input_ids=unpacked([1, 300, -5]), text=texts(b"a")),
        example(text=texts("é".encode()), input_ids=integers([]), weights=floats([0.5])),
        example(text=texts(b"x"), input_ids=field(3, b"")),
    ]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(record, rows)))
    fields = {"input_ids": list[int], "text": str, "weights": list[float] | None}
    found = read_urls(f"{tmp_path}/a.tfrecord", fields=fields)
    assert [row.tolist() for row in found.values["input_ids"]] == [[1, 300, -5], [], []]
    assert found.values["text"] == ["a", "é", "x"]
    assert [None if row is None else row.tolist() for row in found.values["weights"]] == [None, [0.5], None]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (example(ids=integers([1])), r"an example without 'input_ids' \(it has: ids\)"),
        (b"", r"an example without 'input_ids' \(it has: nothing\)"),
        (example(input_ids=texts(b"1 2")), "'input_ids' as bytes"),
        (b"not a message", "a record that is no tf.train.Example"),
        (example(input_ids=integers([1, 2]))[:-1], "a record that is no tf.train.Example"),
        (example(input_ids=field(3, field(1, b"\x01\x80"))), "a record that is no tf.train.Example"),
        (example(input_ids=field(3, field(1, b"\xff" * 12 + b"\x01"))), "a record that is no tf.train.Example"),
    ],
)
def test_a_record_without_the_wanted_integers_is_a_bad_row(
    tmp_path: Path, data: bytes, found: str, read_urls: Callable[..., Any]
) -> None:
    good = record(example(input_ids=integers([7])))
    (tmp_path / "a.tfrecord").write_bytes(good + record(data) + good)
    read = read_urls(f"{tmp_path}/a.tfrecord", fields=IDS)
    assert [row.tolist() for row in read.values["input_ids"]] == [[7], [7]]
    (bad,) = read.bad
    assert (bad.line, bad.row, read.rows) == (2, 1, [0, 2])
    with pytest.raises(AssertionError, match=rf"^found {found}.*; needed a tf.train.Example with 'input_ids'.*\. Name"):
        raise AssertionError(bad.error)


def test_a_flipped_bit_in_the_data_costs_one_record_and_in_the_length_the_rest(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    path, whole = tmp_path / "a.tfrecord", records(ROWS)
    start = len(records(ROWS[:100]))
    last_id = len(records(ROWS[:101])) - start - 5
    for offset, kept, lost in ((last_id, 299, [100]), (50, 299, [100]), (0, 100, [100]), (8, 100, [100])):
        data = bytearray(whole)
        data[start + offset] ^= 1
        path.write_bytes(data)
        found = read_urls(str(path), fields=IDS)
        assert len(found.rows) == kept
        assert [(bad.row, bad.line) for bad in found.bad] == [(row, row + 1) for row in lost]
        assert ("is lost" in found.bad[0].error) == (kept == 100)


def test_a_truncated_file_keeps_the_records_before(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path, whole = tmp_path / "a.tfrecord", records(ROWS[:4])
    size = len(whole) // 4
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        found = read_urls(str(path), fields=IDS)
        assert abs(len(found.rows) - length // size) <= 1
        assert [bad.row for bad in found.bad] == [len(found.rows)]
    path.write_bytes(b"")
    assert [(bad.line, bad.row) for bad in read_urls(str(path), fields=IDS).bad] == [(0, 0)]


def test_a_record_larger_than_many_chunks_is_read(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    rows = [[1], list(range(300_000)), [2]]
    (tmp_path / "a.tfrecord").write_bytes(records(rows))
    found = read_urls(f"{tmp_path}/a.tfrecord", fields=IDS)
    assert [row.tolist() for row in found.values["input_ids"]] == rows
