"""Every format and the odder sources through the whole build, and a build that is read while it runs."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ponente.config.errors import UserError
from ponente.store.sources import UrlSourceConfig
from ponente.store.sources.text import TxtUnit
from ponente.store.token_cache.cache import TokenCache, open_cache
from ponente.tokens.build import build_cache
from ponente.tokens.formats import ChatFormat, PrebuiltFormat, SupervisedFormat, TextFormat
from ponente.tokens.formats.format import TokenFormat
from ponente.tokens.load import load_tokenizer
from ponente.tokens.online import OnlineBuild
from ponente.tokens.spec import CacheSpec

Build = Callable[..., TokenCache]


@pytest.fixture
def build(tmp_path: Path, tiny_folder: Path) -> Build:
    def run(url: Path, row_format: TokenFormat, workers: int = 0, **changes: object) -> TokenCache:
        source = UrlSourceConfig(train_urls=(str(url),), **changes.pop("source", {}))  # type: ignore[arg-type]
        options = {"tokenizer": str(tiny_folder), **changes}
        cache = str(tmp_path / "cache")
        spec = CacheSpec(path=cache, name="x/train", source=source, split="train", row_format=row_format, **options)  # type: ignore[arg-type]
        build_cache(spec, workers=workers)
        return open_cache(cache)

    return run


def counted(cache: TokenCache, tokenizer_folder: Path, row: int) -> str:
    found, tokenizer = cache.row(row), load_tokenizer(str(tokenizer_folder))
    return tokenizer.decode(found["input_ids"][found["loss_mask"] == 1].tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_conversations_have_a_mask(build: Build, tmp_path: Path, tiny_folder: Path, workers: int) -> None:
    turns = [("user", "Hello there"), ("assistant", "Hello!"), ("user", "Bye"), ("assistant", "Good bye.")]
    chat = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n" + json.dumps(chat) + "\n")
    cache = build(tmp_path / "chat.jsonl", ChatFormat(), workers)
    assert cache.columns == {"input_ids": "uint16", "loss_mask": "uint8"}
    assert cache.rows == 2
    assert counted(cache, tiny_folder, 1) == "Hello!<|im_end|>Good bye.<|im_end|>"


def test_answers_count_and_questions_do_not(build: Build, tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"q": "What wind is it?", "a": "The ponente."}))
    cache = build(tmp_path / "pairs.jsonl", SupervisedFormat(input_field="q", output_field="a", separate_with="\n"))
    assert counted(cache, tiny_folder, 0) == "The ponente.<|endoftext|>"


def test_ids_with_weights_are_kept_as_they_are(build: Build, tmp_path: Path) -> None:
    row = {"ids": [5, 6, 7], "w": [0.0, 0.5, 1.0]}
    (tmp_path / "ids.jsonl").write_text(json.dumps(row))
    row_format = PrebuiltFormat(input_ids_key="ids", loss_weights_key="w")
    cache = build(tmp_path / "ids.jsonl", row_format, tokenizer="passthrough", vocab_size=70_000)
    assert cache.columns == {"input_ids": "uint32", "loss_weights": "float32"}
    assert cache.row(0)["input_ids"].tolist() == [5, 6, 7]
    assert cache.row(0)["loss_weights"].tolist() == [0.0, 0.5, 1.0]


def test_megatron_ids_keep_the_order_of_the_file(build: Build, tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    flat = np.array([token for row in rows for token in row], "<u2")
    (tmp_path / "ids.bin").write_bytes(flat.tobytes())
    sizes = np.array([len(row) for row in rows], "<i4")
    pointers = np.array([0, 6, 8], "<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(rows), len(rows) + 1)
    index = header + sizes.tobytes() + pointers.tobytes() + np.arange(len(rows) + 1, dtype="<i8").tobytes()
    (tmp_path / "ids.idx").write_bytes(index)
    cache = build(tmp_path / "ids.bin", PrebuiltFormat(), tokenizer="passthrough", vocab_size=10)
    assert [cache.row(number)["input_ids"].tolist() for number in range(cache.rows)] == rows


def test_a_text_file_may_be_one_document(build: Build, tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "play.txt").write_text("one line\n\nanother line\n")
    cache = build(tmp_path / "play.txt", TextFormat(), source={"txt_unit": TxtUnit.DOCUMENT})
    tokenizer = load_tokenizer(str(tiny_folder))
    assert [tokenizer.decode(cache.row(0)["input_ids"][:-1].tolist())] == ["one line\n\nanother line\n"]
    assert cache.rows == 1


def online_spec(tmp_path: Path, tokenizer: Path, lines: list[str]) -> CacheSpec:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return CacheSpec(
        path=str(tmp_path / "cache"),
        name="online/train",
        source=UrlSourceConfig(train_urls=(str(tmp_path / "rows.jsonl"),)),
        split="train",
        row_format=TextFormat(),
        tokenizer=str(tokenizer),
        segment_tokens=5_000,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_may_start_before_the_build_ends(tmp_path: Path, tiny_folder: Path, workers: int) -> None:
    lines = [json.dumps({"text": f"the west wind number {number}, called ponente"}) for number in range(20_000)]
    spec = online_spec(tmp_path, tiny_folder, lines)
    build = OnlineBuild(spec, workers=workers)
    cache = build.cache(min_rows=100, timeout_seconds=120)
    assert cache.rows >= 100
    first = cache.read(0, 1000).tolist()
    ledger = build.result()
    cache.refresh()
    assert cache.is_finished and cache.rows == ledger.rows == 20_000
    assert cache.read(0, 1000).tolist() == first


def test_whoever_waits_for_rows_gets_the_error_of_the_build(tmp_path: Path, tiny_folder: Path) -> None:
    build = OnlineBuild(online_spec(tmp_path, tiny_folder, ['{"text": "fine"}', "broken"]), workers=0)
    with pytest.raises(UserError, match=r"rows\.jsonl:2"):
        build.cache(min_rows=100, timeout_seconds=120)
    with pytest.raises(UserError, match=r"rows\.jsonl:2"):
        build.result()


def test_a_cache_of_something_else_is_not_handed_to_a_reader(
    tmp_path: Path, tiny_folder: Path, tiny_tokenizer: str
) -> None:
    spec = online_spec(tmp_path, tiny_folder, ['{"text": "fine"}'] * 100)
    build_cache(spec, workers=0)
    with pytest.raises(UserError, match="tokenizer: the cache has"):
        OnlineBuild(replace(spec, tokenizer=tiny_tokenizer), workers=0).cache(timeout_seconds=60)


def test_a_parquet_row_in_another_encoding_costs_only_itself(build: Build, tmp_path: Path) -> None:
    texts = [f"row {number}".encode() for number in range(1000)]
    texts[10] = "ñandú".encode("latin-1")
    column = pa.array(texts, pa.binary()).view(pa.string())  # as careless writers do it
    pq.write_table(pa.table({"text": column}), tmp_path / "rows.parquet")
    cache = build(tmp_path / "rows.parquet", TextFormat(), max_bad_records=1)
    assert cache.rows == 999
    (bad,) = (tmp_path / "cache" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(bad)["line"] == 11 and "not UTF-8" in json.loads(bad)["error"]
