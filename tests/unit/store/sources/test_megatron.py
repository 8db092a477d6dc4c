"""Megatron pairs: each sequence a row, in file order, whichever program wrote the index."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponente.store.sources.megatron import MegatronReader
from ponente.store.sources.rows import SourceError

IDS = {"input_ids": list[int]}
ROWS = [[number * 7919 % 50_000 for number in range(start, start + start * 31 % 90)] for start in range(400)]


def index(sizes: Sequence[int], pointers: Sequence[int], code: int, *, modes: bool = False) -> bytes:
    count, bounds = len(sizes), list(range(len(sizes) + 1))
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, count, len(bounds))
        + np.array(sizes, "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + np.array(bounds, "<i8").tobytes()
        + (bytes(count) if modes else b"")
    )


def write(folder: Path, name: str, rows: Sequence[Sequence[int]], dtype: str = "<u2", **options: Any) -> Path:
    code = {"<u1": 1, "<i4": 4, "<i8": 5, "<u2": 8}[dtype]
    arrays = [np.array(row, dtype) for row in rows]
    pointers = np.cumsum([0, *(array.nbytes for array in arrays)])[:-1]
    (folder / f"{name}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    (folder / f"{name}.idx").write_bytes(index([len(row) for row in rows], pointers.tolist(), code, **options))
    return folder / f"{name}.bin"


def lists(found: Any) -> list[list[int]]:
    return [row.tolist() for row in found.values["input_ids"]]


@pytest.mark.parametrize("dtype", ["<u2", "<i4", "<i8"])
@pytest.mark.parametrize("modes", [False, True])
def test_sequences_come_as_arrays_of_their_own_type_however_the_file_is_split(
    tmp_path: Path, dtype: str, modes: bool, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path, "a", ROWS, dtype, modes=modes)
    for split_bytes in (1000, 1 << 30):
        found = read_urls(str(path), fields=IDS, split_bytes=split_bytes, group_bytes=1)
        assert lists(found) == ROWS
        assert {row.dtype for row in found.values["input_ids"]} == {np.dtype(dtype)}
        assert (found.lines, found.bad) == (list(range(1, 401)), [])
        assert found.source_bytes == path.stat().st_size


@pytest.mark.parametrize("urls", [["a.bin"], ["a.idx"], ["a"], ["a.*"], ["*"], ["."], ["a.bin", "a.idx"]])
def test_a_pair_is_named_by_either_file_or_their_prefix_and_read_once(
    tmp_path: Path, urls: list[str], read_urls: Callable[..., Any]
) -> None:
    write(tmp_path, "a", ROWS)
    assert lists(read_urls(*(f"{tmp_path}/{url}" for url in urls), fields=IDS)) == ROWS


def test_sequences_may_lie_in_any_order(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.bin").write_bytes(np.arange(10, dtype="<u2").tobytes())
    (tmp_path / "a.idx").write_bytes(index([3, 0, 4, 3], [14, 0, 0, 8], 8))
    assert lists(read_urls(f"{tmp_path}/a", fields=IDS)) == [[7, 8, 9], [], [0, 1, 2, 3], [4, 5, 6]]


def test_a_short_bin_keeps_the_sequences_before_and_loses_the_rest(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path, "a", ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * sum(map(len, ROWS[:200])) + 1])
    found = read_urls(str(path), fields=IDS)
    kept = next(number for number in range(200, 400) if ROWS[number])
    assert lists(found) == ROWS[:kept]
    assert [(bad.row, bad.line) for bad in found.bad] == [(kept, kept + 1)]
    assert "the rest of the file is lost" in found.bad[0].error


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: b"TNTIDX" + data[6:], "does not begin as a Megatron index"),
        (lambda data: b"", "does not begin as a Megatron index"),
        (lambda data: data[:9] + b"\x02" + data[10:], "version 2 and type code 8"),
        (lambda data: data[:17] + b"\x06" + data[18:], "type code 6; needed version 1 and an integer type"),
        (lambda data: data[:-1], "truncated"),
    ],
)
def test_an_index_that_cannot_be_right_is_an_error_before_work(
    tmp_path: Path, damage: Callable[[bytes], bytes], match: str
) -> None:
    path = write(tmp_path, "a", ROWS)
    index_file = path.with_suffix(".idx")
    index_file.write_bytes(damage(index_file.read_bytes()))
    with pytest.raises(SourceError, match=match):
        MegatronReader().split(str(path), path.stat().st_size, 1 << 20)


def test_tokens_cannot_be_text(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = write(tmp_path, "a", ROWS)
    with pytest.raises(SourceError, match=r"token ids only; needed rows with 'text' \(str\).*prebuilt"):
        read_urls(str(path))


def test_a_bin_without_its_index_is_an_error(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = write(tmp_path, "a", ROWS)
    path.with_suffix(".idx").unlink()
    with pytest.raises(SourceError, match=r"a\.bin without the \.idx beside it"):
        read_urls(str(path), fields=IDS)
