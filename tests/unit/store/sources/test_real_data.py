"""Real files as people have them: web pages, novels with byte order marks and CRLF, chats and instructions."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponente.store.sources.text import TxtUnit

SharedData = Callable[[str], Path]
ReadUrls = Callable[..., Any]


def test_web_pages_are_those_that_json_reads_plain_split_and_compressed(
    tmp_path: Path, shared_data: SharedData, read_urls: ReadUrls
) -> None:
    path = shared_data("corpora") / "c4_demo.jsonl"
    texts = [json.loads(line)["text"] for line in path.read_bytes().splitlines()]
    assert len(texts) == 300
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    for found in (
        read_urls(str(path)),
        read_urls(str(path), split_bytes=50_000, group_bytes=1),
        read_urls(f"{tmp_path}/a.jsonl.gz"),
    ):
        assert (found.texts, found.lines, found.bad) == (texts, list(range(1, 301)), [])


def test_novels_have_no_marks_and_no_carriage_returns(shared_data: SharedData, read_urls: ReadUrls) -> None:
    folder = shared_data("corpora") / "novels"
    files = sorted(folder.glob("*.txt"))
    assert any(path.read_bytes().startswith(b"\xef\xbb\xbf") and b"\r\n" in path.read_bytes() for path in files)
    lines = read_urls(f"{folder}/*.txt")
    documents = read_urls(f"{folder}/*.txt", txt_unit=TxtUnit.DOCUMENT)
    assert len(documents.texts) + len(documents.bad) == len(files) == 40
    assert not any("\ufeff" in text[:1] or "\r" in text for text in [*documents.texts, *lines.texts])
    assert all(text.strip() for text in lines.texts)
    path, number = lines.places[5000]
    assert Path(path).read_text(encoding="utf-8-sig").split("\n")[number - 1] == lines.texts[5000]
    for path, text in zip([place for place, _ in documents.places], documents.texts, strict=True):
        assert text == Path(path).read_text(encoding="utf-8-sig")


@pytest.mark.parametrize(
    "pattern", ["alpaca_tiny.json", "llama-factory/*.json", "hh-rlhf/*", "gpteacher/*", "self-instruct/*", "oasst/*"]
)
def test_instructions_and_chats_are_read_as_json_reads_them(
    pattern: str, shared_data: SharedData, read_urls: ReadUrls
) -> None:
    paths = [path for path in sorted(shared_data("sft").glob(pattern)) if ".json" in path.name]
    assert paths
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        try:
            rows = json.loads(data)
        except ValueError:
            rows = [json.loads(line) for line in data.splitlines() if line.strip()]
        key = next(iter(rows[0]))
        found = read_urls(str(path), fields={key: Any})
        assert found.values[key] == [row[key] for row in rows if key in row]
        assert len(found.bad) == sum(key not in row for row in rows)
