"""Bad input through the whole build: a clear error with file and line, or with a budget a line in quarantine."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ponente.config.errors import UserError
from ponente.store.sources import UrlSourceConfig
from ponente.store.token_cache.cache import open_cache
from ponente.tokens.build import build_cache
from ponente.tokens.formats import PrebuiltFormat, TextFormat
from ponente.tokens.spec import CacheSpec

GOOD = [json.dumps({"text": f"speech number {number}"}) for number in range(400)]


def lines(*, at: int, bad: bytes) -> bytes:
    rows = [line.encode() for line in GOOD]
    rows[at - 1] = bad
    return b"\n".join(rows) + b"\n"


def truncated() -> bytes:
    whole = gzip.compress(lines(at=1, bad=GOOD[0].encode()))
    return whole[: len(whole) // 2]


CASES: dict[str, tuple[str, bytes, int | None, str]] = {  # file, its bytes, the line at fault, what is said
    "broken JSON": ("a.jsonl", lines(at=7, bad=b'{"text": "half'), 7, "JSON"),
    "no text": ("a.jsonl", lines(at=9, bad=b'{"body": "x"}'), 9, "text"),
    "null text": ("a.jsonl", lines(at=3, bad=b'{"text": null}'), 3, "null"),
    "a number for text": ("a.jsonl", lines(at=3, bad=b'{"text": 12}'), 3, "int"),
    "not an object": ("a.jsonl", lines(at=400, bad=b"[1, 2]"), 400, "object"),
    "wrong encoding": ("a.jsonl", lines(at=5, bad='{"text": "ñandú"}'.encode("latin-1")), 5, "UTF-8"),
    "wrong encoding in text": ("a.txt", b"fine\ncaf\xe9\nfine\n", 2, "UTF-8"),
    "truncated gzip": ("a.jsonl.gz", truncated(), None, "truncated"),
    "empty file": ("b.jsonl", b"", None, "empty"),
    "empty gzip": ("b.jsonl.gz", b"", None, "empty"),
}


@pytest.fixture
def spec(tmp_path: Path, tiny_tokenizer: str) -> Callable[..., CacheSpec]:
    def make(name: str, data: bytes) -> CacheSpec:
        folder = tmp_path / "files"
        folder.mkdir()
        (folder / name).write_bytes(data)
        (folder / "z.jsonl").write_text("\n".join(GOOD))
        return CacheSpec(
            path=str(tmp_path / "cache"),
            name="bad/train",
            source=UrlSourceConfig(train_urls=(f"{folder}/*",)),
            split="train",
            row_format=TextFormat(),
            tokenizer=tiny_tokenizer,
        )

    return make


@pytest.mark.parametrize("case", CASES)
def test_without_a_budget_it_ends_with_the_place_and_what_to_do(case: str, spec: Callable[..., CacheSpec]) -> None:
    name, data, line, said = CASES[case]
    with pytest.raises(UserError) as caught:
        build_cache(spec(name, data), workers=0)
    text = str(caught.value)
    assert f"files/{name}" in text and said in text and "found" in text and "needed" in text
    assert line is None or f"{name}:{line}:" in text


@pytest.mark.parametrize("case", CASES)
def test_with_a_budget_it_is_listed_and_the_rest_is_used(case: str, spec: Callable[..., CacheSpec]) -> None:
    name, data, line, said = CASES[case]
    wanted = replace(spec(name, data), max_bad_records=1)
    ledger = build_cache(wanted, workers=0)
    assert ledger.bad_rows == 1 and ledger.rows >= len(GOOD)
    (listed,) = [json.loads(row) for row in (Path(wanted.path) / "quarantine.jsonl").read_text().splitlines()]
    assert Path(listed["path"]).name == name and said in listed["error"]
    assert line is None or listed["line"] == line


def test_ids_outside_the_vocabulary_are_bad_rows(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 100]}, {"input_ids": [-1]}, {"input_ids": [99]}]
    (tmp_path / "ids.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = CacheSpec(
        path=str(tmp_path / "cache"),
        name="ids/train",
        source=UrlSourceConfig(train_urls=(str(tmp_path / "ids.jsonl"),)),
        split="train",
        row_format=PrebuiltFormat(),
        tokenizer="passthrough",
        vocab_size=100,
    )
    with pytest.raises(UserError, match=r"ids\.jsonl:2: .*100"):
        build_cache(spec, workers=0)
    ledger = build_cache(replace(spec, path=str(tmp_path / "second"), max_bad_records=2), workers=0)
    assert (ledger.rows, ledger.bad_rows) == (2, 2)
    assert open_cache(str(tmp_path / "second")).read(0, 4).tolist() == [1, 2, 3, 99]


def test_a_tokenizer_without_an_end_is_refused_before_any_work(tmp_path: Path, tiny_tokenizer: str) -> None:
    folder = tmp_path / "endless"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((Path(tiny_tokenizer) / "tokenizer.json").read_bytes())
    (tmp_path / "a.jsonl").write_text("\n".join(GOOD))
    spec = CacheSpec(
        path=str(tmp_path / "cache"),
        name="endless/train",
        source=UrlSourceConfig(train_urls=(str(tmp_path / "a.jsonl"),)),
        split="train",
        row_format=TextFormat(),
        tokenizer=str(folder),
    )
    with pytest.raises(UserError, match=r"no EOS token.*enforce_eos"):
        build_cache(spec, workers=0)
    assert not (tmp_path / "cache").exists()


def test_a_corpus_without_files_or_rows_is_refused(tmp_path: Path, spec: Callable[..., CacheSpec]) -> None:
    wanted = spec("a.jsonl", b'{"text": ""}\n')
    nothing = replace(wanted, source=UrlSourceConfig(train_urls=(str(tmp_path / "none" / "*.jsonl"),)))
    with pytest.raises(UserError, match=r"none/\*\.jsonl"):
        build_cache(nothing, workers=0)
    only = replace(wanted, source=UrlSourceConfig(train_urls=(str(tmp_path / "files" / "a.jsonl"),)))
    with pytest.raises(UserError, match="no row with tokens"):
        build_cache(only, workers=0)
