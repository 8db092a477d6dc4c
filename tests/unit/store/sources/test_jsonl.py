"""JSON lines: every row or a bad row for it, with the file's own line numbers, however the file is cut."""

import json
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.store.sources.lines import line_blocks, owned_chunks

BOM = b"\xef\xbb\xbf"
GOOD = b'{"text": "good", "other": [1, {"text": 2}]}'
LINES = st.sampled_from(
    [
        *[GOOD, GOOD, GOOD + b"\r", b'{"text": "' + b"x" * 150 + b'"}', b"", b" \t\r", b"\x0c", b"[]", b"{"],
        *[b'{"text": 7}', b'{"a": {"text": "no"}}', b'{"text": "\xff"}', b"null"],
        *[
            b'{"text": "a"}{"text": "b"}',
            b'{"text":',
            b'"a"}',
            b'{"a": {}',
            b', "text": "x"}',
            b'{"a":',
            b'{}, "text": "y"}',
        ],
    ]
)
FILES = st.builds(
    lambda start, lines, end: start + b"\n".join(lines) + end,
    st.sampled_from([b"", BOM]),
    st.lists(LINES, max_size=20),
    st.sampled_from([b"", b"\n"]),
).filter(bool)


def read_slowly(data: bytes) -> tuple[list[tuple[int, str]], list[int]]:
    """The good rows (line, text) and the lines of the bad ones, by Python's own means."""
    good, bad = [], []
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value["text"], str):
                raise TypeError
            good.append((number, value["text"]))
        except (ValueError, TypeError, KeyError):
            bad.append(number)
    return good, bad


@settings(max_examples=300, deadline=None)
@given(data=FILES, split_bytes=st.integers(1, 400))
def test_every_line_is_a_row_or_a_bad_row_with_its_own_number_however_the_file_is_split(
    data: bytes, split_bytes: int, read_urls: Callable[..., Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.jsonl").write_bytes(data)
        found = read_urls(f"{folder}/a.jsonl", split_bytes=split_bytes)
    good, bad = read_slowly(data)
    assert list(zip(found.lines, found.texts, strict=True)) == good
    assert [one.line for one in found.bad] == bad


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), st.data())
def test_each_line_starts_in_exactly_one_range(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(data)))) | {0, len(data)})
    size = draw.draw(st.integers(1, 9))
    whole = b""
    for start, stop in pairwise(cuts):
        begin = max(0, start - 1)
        chunks = [data[at : at + size] for at in range(begin, len(data), size)]
        owned = b"".join(owned_chunks(chunks, start, stop))
        assert data.startswith(owned, len(whole))
        assert not owned or start <= len(whole) < stop
        whole += owned
    assert whole == data


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80).map(lambda data: data.replace(b"\x00", b"\n")), st.integers(1, 9), st.integers(1, 30))
def test_blocks_hold_all_lines_with_their_numbers_whatever_the_chunks_are(data: bytes, size: int, block: int) -> None:
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    blocks = list(line_blocks(chunks, block_bytes=block))
    lines = data.removeprefix(BOM).split(b"\n")
    assert [line for one in blocks for line in one.lines] == (lines if lines[-1] else lines[:-1])
    assert [one.first_line for one in blocks] == [
        1 + sum(len(two.lines) for two in blocks[:n]) for n in range(len(blocks))
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"b\r", b"c" * 700, b"d" * 5000]), max_size=40), st.integers(1, 3000))
def test_long_and_short_lines_may_follow_each_other(lines: list[bytes], size: int) -> None:
    data = b"\n".join([*lines, b"last"])
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    found = [line for block in line_blocks(chunks, block_bytes=1000) for line in block.lines]
    assert found == [*lines, b"last"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"text": "cut', "not JSON"),
        (b"not json", "not JSON"),
        (b'{"text": "a"} {"text": "b"}', "not JSON"),
        (b'["a"]', "Expected `object`, got `array`"),
        (b'{"content": "a", "id": 7}', r"without the key 'text' \(its keys: content, id\)"),
        (b"{}", r"without the key 'text' \(its keys: none\)"),
        (b'{"text": null}', "Expected `str`, got `null`"),
        (b'{"text": 7}', "Expected `str`, got `int`"),
        (b'{"text": "\xff\xfe"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "not JSON"),
        (b'{"text": "x", "k": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ],
)
def test_a_bad_line_says_what_was_found_and_needed_and_what_to_do(
    tmp_path: Path, line: bytes, found: str, read_urls: Callable[..., Any]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b"\n\n" + line + b"\n" + GOOD)
    read = read_urls(str(path))
    assert (read.texts, read.rows, read.lines) == (["good", "good"], [0, 2], [1, 4])
    (bad,) = read.bad
    assert (bad.path, bad.line, bad.row) == (str(path), 3, 1)
    assert bad.excerpt == line[:200].decode(errors="replace")
    with pytest.raises(AssertionError, match=rf"^found .*{found}.*; needed .*'text' \(str\).*\. .*[A-Z].*(row|config)"):
        raise AssertionError(bad.error if "'text'" in bad.error else bad.error.replace("UTF-8 text", "'text' (str)"))


def test_only_wanted_fields_are_given_whatever_their_names(
    tmp_path: Path, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    rows = [{"a b": "x", "class": [1, 2], "text": 1, "é.ü": {"k": [None]}}, {"é.ü": {}, "class": [], "a b": "y"}]
    (tmp_path / "a.jsonl").write_bytes(json_lines(*rows))
    fields = {"class": list[int], "a b": str, "é.ü": dict[str, Any]}
    found = read_urls(f"{tmp_path}/a.jsonl", fields=fields)
    assert found.values == {name: [row[name] for row in rows] for name in fields}


def test_a_field_that_may_be_none_may_be_missing(
    tmp_path: Path, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines({"text": "a"}, {"text": "b", "system": "s"}, {"system": "s"}))
    found = read_urls(f"{tmp_path}/a.jsonl", fields={"text": str, "system": str | None})
    assert found.values == {"text": ["a", "b"], "system": [None, "s"]}
    assert [bad.line for bad in found.bad] == [3]


def test_an_empty_file_is_one_bad_row_and_its_neighbours_are_read(
    tmp_path: Path, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    for name, data in {"a": json_lines({"text": "a"}), "b": b"", "c": json_lines({"text": "c"})}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(data)
    found = read_urls(f"{tmp_path}/*.jsonl")
    assert (found.texts, found.rows) == (["a", "c"], [0, 2])
    (bad,) = found.bad
    assert (bad.path, bad.line, bad.row) == (f"{tmp_path}/b.jsonl", 0, 1)
    assert "found an empty file; needed rows" in bad.error


def test_a_line_that_is_too_long_is_one_bad_row_and_memory_stays_bounded() -> None:
    chunks = [b"ok\n12345", b"67", b"8", b"9\nok", b" too\n", b"x" * 9, b"y" * 9, b"z" * 99, b"\nlast"]
    blocks = list(line_blocks(chunks, block_bytes=4, max_line_bytes=8))
    assert [(one.lines, one.first_line, bool(one.fault)) for one in blocks] == [
        ([b"ok"], 1, False),
        ([b"123456789"], 2, True),
        ([b"ok too"], 3, False),
        ([b"x" * 9], 4, True),
        ([b"last"], 5, False),
    ]
    assert "longer than 8 bytes; needed one row a line" in blocks[1].fault
    assert [one.fault for one in line_blocks([b"12345678", b"\n"], max_line_bytes=8)] == [""]


def test_a_large_file_is_read_whole_and_its_places_are_right(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"{number} " + "é" * (number * 7919 % 3000)} for number in range(3000)]
    lines = [json.dumps(row, ensure_ascii=number % 2 == 0).encode() for number, row in enumerate(rows)]
    lines[1234] = b"bad"
    path.write_bytes(b"\n".join(lines))
    for split_bytes in (1 << 20, 1 << 30):
        found = read_urls(str(path), split_bytes=split_bytes)
        assert found.texts == [row["text"] for number, row in enumerate(rows) if number != 1234]
        assert found.lines == [number for number in range(1, 3001) if number != 1235]
        assert [bad.line for bad in found.bad] == [1235]
    assert found.source_bytes == path.stat().st_size
    assert read_urls(str(path), skip=2500).source_bytes == path.stat().st_size
