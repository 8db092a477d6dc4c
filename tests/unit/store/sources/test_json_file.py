"""Files named .json: arrays, objects and JSON lines are told apart by what is in them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponente.store.sources.json_file import JsonFileReader
from ponente.store.sources.rows import Piece, SourceError

ROWS = [{"text": "a", "n": [1]}, {"n": 2, "text": "é"}, {"text": "c"}]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (json.dumps(ROWS), [1, 1, 1]),
        (json.dumps(ROWS, indent=1), [2, 8, 12]),
        ("\ufeff\r\n [\n" + ",\n\n".join(map(json.dumps, ROWS)) + "]\n\n", [3, 5, 7]),
        ("".join(json.dumps(row) + "\n" for row in ROWS), [1, 2, 3]),
        ("\ufeff\n" + "\r\n".join(map(json.dumps, ROWS)), [2, 3, 4]),
    ],
)
def test_arrays_and_lines_give_the_same_rows_with_the_lines_they_begin_at(
    tmp_path: Path, data: str, lines: list[int], read_urls: Callable[..., Any]
) -> None:
    (tmp_path / "a.json").write_text(data, newline="")
    found = read_urls(f"{tmp_path}/a.json")
    assert (found.texts, found.rows, found.bad) == (["a", "é", "c"], [0, 1, 2], [])
    assert found.lines == lines


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object_is_one_row(tmp_path: Path, indent: int | None, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"k": {"text": "no"}, "text": "yes"}, indent=indent))
    found = read_urls(f"{tmp_path}/a.json")
    assert (found.texts, found.lines, found.bad) == (["yes"], [1], [])


def test_bad_elements_of_an_array_are_bad_rows_at_their_lines(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"},\n {"text": null},\n\n7, {"txt": 1}, {"text": "b"}\n]')
    found = read_urls(f"{tmp_path}/a.json")
    assert (found.texts, found.rows, found.lines) == (["a", "b"], [0, 4], [1, 4])
    assert [(bad.line, bad.row) for bad in found.bad] == [(2, 1), (4, 2), (4, 3)]
    assert "its keys: txt" in found.bad[2].error


@pytest.mark.parametrize("data", [b'[{"text": "a"}, {"text": ', b'[{"text": "a"}] x', b"[", b"[1]\n[2]"])
def test_a_broken_array_is_one_bad_row(tmp_path: Path, data: bytes, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.json").write_bytes(data)
    found = read_urls(f"{tmp_path}/a.json")
    assert (found.texts, [(bad.line, bad.row) for bad in found.bad]) == ([], [(0, 0)])
    assert "found an array that is not JSON" in found.bad[0].error


def test_an_object_that_breaks_off_is_told_line_by_line(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.json").write_text('{"text":\n"a",\n{"text": "b"}\n')
    found = read_urls(f"{tmp_path}/a.json")
    assert (found.texts, [bad.line for bad in found.bad]) == (["b"], [1, 2])


def test_a_truncated_compressed_array_is_one_bad_row(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(ROWS * 99).encode())[:-20])
    found = read_urls(f"{tmp_path}/a.json.gz")
    assert (found.texts, len(found.bad)) == ([], 1)
    assert "truncated or corrupt" in found.bad[0].error


def test_a_large_array_is_read_whole(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    rows = [{"text": f"{number} " + "x" * 900} for number in range(3000)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=0))
    found = read_urls(f"{tmp_path}/a.json")
    assert found.texts == [row["text"] for row in rows]
    assert found.lines == [3 * number + 2 for number in range(3000)]
    assert found.source_bytes == (tmp_path / "a.json").stat().st_size


def test_an_array_above_the_limit_is_refused_before_work_with_a_hint_to_json_lines(tmp_path: Path) -> None:
    path, reader = tmp_path / "a.json", JsonFileReader(max_bytes=100)
    path.write_text(json.dumps(ROWS * 9))
    with pytest.raises(SourceError, match=r"larger than 100 bytes.*needed JSON lines.*jq -c"):
        reader.split(str(path), path.stat().st_size, 1)
    path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SourceError, match="larger than 100 bytes"):
        list(reader.read(Piece(path=f"{path}.gz"), {"text": str}, 0))
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS * 9))
    (piece,) = reader.split(str(path), path.stat().st_size, 1)
    assert [rows.next_row for rows in reader.read(piece, {"text": str}, 0)] == [27]
