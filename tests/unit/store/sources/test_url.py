"""The url source: what a config means is known, and wrong ones are refused, before any work."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import draccus
import pytest

from ponente.store.sources import HfSourceConfig, SourceConfig, UrlSourceConfig
from ponente.store.sources.files import SourceFile
from ponente.store.sources.readers import reader_of, register_reader
from ponente.store.sources.rows import SourceError
from ponente.store.sources.text import TxtUnit
from ponente.store.sources.units import plan_units
from ponente.store.volume import volume_of


def put(folder: str, name: str, text: str) -> None:
    volume_of(folder).create(f"{folder}/{name}", json.dumps({"text": text}).encode() + b"\n")


def test_sources_are_chosen_by_type_and_url_is_the_default() -> None:
    decoded = draccus.decode(SourceConfig, {"train_urls": ["a", "b"], "txt_unit": "document"})
    assert decoded == UrlSourceConfig(train_urls=("a", "b"), txt_unit=TxtUnit.DOCUMENT)
    assert draccus.decode(SourceConfig, {"type": "url"}) == UrlSourceConfig()
    assert draccus.decode(SourceConfig, {"type": "hf", "id": "x"}) == HfSourceConfig(id="x")


def test_a_source_has_the_splits_that_it_has_urls_for() -> None:
    assert UrlSourceConfig().splits() == []
    assert UrlSourceConfig(train_urls=("a",), validation_urls=("b",)).splits() == ["train", "validation"]
    assert UrlSourceConfig(validation_urls=("b",)).splits() == ["validation"]


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("{b,a}.jsonl", "ba"),
        ("*.jsonl", "abc"),
        ("[bc].jsonl", "bc"),
        (".", "abcd"),
        ("sub", "d"),
        ("**/*.jsonl", "abcd"),
    ],
)
def test_braces_globs_and_folders_mean_their_files_in_order(
    folder: str, url: str, names: str, read_urls: Callable[..., Any]
) -> None:
    for name in "cab":
        put(folder, f"{name}.jsonl", name)
    put(folder, "sub/d.jsonl", "d")
    put(folder, ".hidden.jsonl", "no")
    put(folder, ".records/x.jsonl", "no")
    assert "".join(read_urls(f"{folder}/{url}").texts) == names


def test_other_files_of_a_folder_are_left_out_with_a_warning(
    folder: str, read_urls: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "a.jsonl", "a")
    put(folder, "README.md", "no")
    assert read_urls(folder).texts == ["a"]
    assert [(record.levelno, "README.md" in record.message) for record in caplog.records] == [(logging.WARNING, True)]


def test_a_file_that_is_named_twice_is_read_twice_with_a_warning(
    folder: str, read_urls: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "a.jsonl", "a")
    assert read_urls(f"{folder}/a.jsonl", f"{folder}/*.jsonl").texts == ["a", "a"]
    assert "a.jsonl is named twice" in caplog.text


@pytest.mark.parametrize(
    ("url", "match"),
    [
        (
            "a.csv",
            r"a\.csv, whose ending is not known; needed one of: \.jsonl, \.jsonl\.gz.*\.parquet.*register_reader",
        ),
        ("*", r"a\.csv, whose ending is not known"),
        ("missing.jsonl", r"found no file .*missing\.jsonl; needed"),
        ("{b,missing}.jsonl", r"found no file .*missing\.jsonl; needed"),
        ("no*.jsonl", r"found no file that matches .*no\*\.jsonl"),
        ("{a.jsonl", "braces that do not pair"),
        ("empty", "without a file to read; needed some with one of"),
    ],
)
def test_what_cannot_be_read_is_an_error_before_any_work(folder: str, url: str, match: str) -> None:
    for name in ("a.csv", "b.jsonl", "empty/x.md"):
        put(folder, name, "x")
    for method in (UrlSourceConfig.units, UrlSourceConfig.fingerprints):
        with pytest.raises(SourceError, match=match):
            method(UrlSourceConfig(train_urls=(f"{folder}/b.jsonl", f"{folder}/{url}")), "train")


def test_small_files_are_grouped_in_order_by_size_and_number() -> None:
    sizes = [3, 4, 3, 20, 1, 1, 1, 1, 1, 9]
    files = [SourceFile(f"/{number}.jsonl", size, "") for number, size in enumerate(sizes)]
    units = plan_units(files, reader_of, group_bytes=7, group_files=4, split_bytes=100)
    names = [[int(piece["path"][1:-6]) for piece in unit["pieces"]] for unit in units]
    assert names == [[0, 1], [2], [3], [4, 5, 6, 7], [8], [9]]
    assert [unit["bytes"] for unit in units] == [7, 3, 20, 4, 1, 9]


def test_a_large_plain_file_of_lines_is_split_and_others_are_not() -> None:
    def starts(name: str) -> list[int]:
        units = plan_units([SourceFile(f"/{name}", 1000, "")], reader_of, group_bytes=1, split_bytes=300)
        assert sum(unit["bytes"] for unit in units) == 1000
        return [piece.get("start", 0) for unit in units for piece in unit["pieces"]]

    assert starts("a.jsonl") == starts("a.txt") == [0, 250, 500, 750]
    assert starts("a.jsonl.gz") == starts("a.txt.zst") == starts("a.json") == [0]


def test_units_of_default_sizes_are_large(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number:04}.txt").write_text("x")
    units = UrlSourceConfig(train_urls=(str(tmp_path),)).units("train")
    assert [len(unit["pieces"]) for unit in units] == [1024, 476]
    assert [UrlSourceConfig().unit_bytes(unit) for unit in units] == [1024, 476]
    files = [SourceFile("/a.jsonl", 1 << 30, "")]
    assert len(plan_units(files, reader_of)) == 16


def test_many_small_files_come_in_few_batches(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text(f"{number}\n\n{number}b")
    source = UrlSourceConfig(train_urls=(f"{tmp_path}/*.txt",))
    (unit,) = source.units("train")
    (batch,) = source.read(unit, {"text": str})
    assert batch.next_row == 400
    assert batch.place(301) == (f"{tmp_path}/150.txt", 3)
    assert batch.values["text"][301] == "150b"


def test_users_teach_their_own_formats(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    def rows_of(path: str) -> list[dict[str, Any]]:
        return [{"text": line, "n": 1} if line != "bad" else {"n": 2} for line in Path(path).read_text().split(";")]

    register_reader(".semicolons", rows_of)
    (tmp_path / "a.semicolons").write_text("a;bad;c")
    found = read_urls(f"{tmp_path}/a.semicolons")
    assert (found.texts, found.rows, found.lines) == (["a", "c"], [0, 2], [1, 3])
    assert [(bad.line, "its keys: n" in bad.error) for bad in found.bad] == [(2, True)]
    with pytest.raises(ValueError, match="with its dot"):
        register_reader("csv", rows_of)


def test_a_field_of_a_unit_split_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SourceError, match="found split 'test'; needed one of: train, validation"):
        UrlSourceConfig(train_urls=("a",)).units("test")
