"""Building caches: exact rows, equal bytes however they were made, resumed, refused where something differs."""

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from single_files import SingleFiles

from ponente.config.errors import RefusedError, UserError
from ponente.store.sources import UrlSourceConfig
from ponente.store.sources.text import TxtUnit
from ponente.store.token_cache.cache import open_cache, open_growing_cache
from ponente.store.token_cache.ledger import CacheError, read_plan
from ponente.tokens.build import build_cache
from ponente.tokens.config import ComponentConfig, DataConfig
from ponente.tokens.formats.format import EncodedRows, Encoder, EncoderOptions
from ponente.tokens.formats.text import TextFormat
from ponente.tokens.load import load_tokenizer
from ponente.tokens.progress import BuildProgress
from ponente.tokens.spec import CacheSpec, cache_specs
from ponente.tokens.tokenizer import Tokenizer


@pytest.fixture
def spec(tmp_path: Path, tiny_corpus: Path, tiny_tokenizer: str) -> CacheSpec:
    return CacheSpec(
        path=str(tmp_path / "cache"),
        name="tiny/train",
        source=SingleFiles(train_urls=(f"{tiny_corpus}/*.jsonl",)),
        split="train",
        row_format=TextFormat(),
        tokenizer=tiny_tokenizer,
        segment_tokens=2000,
    )


def files_of(folder: str) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def with_lines(spec: CacheSpec, folder: Path, lines: list[str], name: str = "bad.jsonl") -> CacheSpec:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return replace(spec, source=UrlSourceConfig(train_urls=(str(path),)))


def test_every_document_is_there_once_in_order_with_its_end(
    spec: CacheSpec, tiny_corpus: Path, tiny_tokenizer: str
) -> None:
    ledger = build_cache(spec, workers=0)
    tokenizer, cache = load_tokenizer(tiny_tokenizer), open_cache(spec.path)
    lines = [line for path in sorted(tiny_corpus.iterdir()) for line in path.read_text().splitlines()]
    texts = [text for line in lines if (text := json.loads(line)["text"])]
    assert (ledger.rows, ledger.bad_rows, cache.rows) == (len(texts), 0, len(texts))
    assert ledger.empty_rows == len(lines) - len(texts)
    for index, text in enumerate(texts):
        ids = cache.row(index)["input_ids"].tolist()
        assert ids[-1] == tokenizer.eos_id
        assert tokenizer.decode(ids[:-1]) == text
    assert ledger.tokens == cache.tokens == len(cache.read(0, cache.tokens))
    assert len(ledger.segments) > 5
    assert not (Path(spec.path) / ".maps").exists()


def test_the_bytes_do_not_depend_on_the_number_of_workers(spec: CacheSpec, tmp_path: Path) -> None:
    build_cache(spec, workers=0)
    other = replace(spec, path=str(tmp_path / "other"))
    build_cache(other, workers=3)
    assert files_of(spec.path) == files_of(other.path)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_an_unfinished_cache_is_finished_to_the_same_bytes_without_doing_again_what_was_done(
    spec: CacheSpec, tmp_path: Path, kept: int
) -> None:
    build_cache(spec, workers=0)
    whole = files_of(spec.path)
    cut = tmp_path / "cut"
    shutil.copytree(spec.path, cut)
    for name in ("ledger.json", "finished.json"):
        (cut / name).unlink()
    names = sorted(path.name for path in (cut / "segments").iterdir())
    for name in names[kept:]:
        shutil.rmtree(cut / "segments" / name)
    (cut / "segments" / ".part-killed" / "000009-0000").mkdir(parents=True)
    stamps = {name: (cut / "segments" / name / "zarr.json").stat().st_mtime_ns for name in names[:kept]}
    build_cache(replace(spec, path=str(cut)), workers=0)
    assert files_of(str(cut)) == whole
    assert {n: (cut / "segments" / n / "zarr.json").stat().st_mtime_ns for n in names[:kept]} == stamps


def test_a_finished_cache_is_not_touched(spec: CacheSpec) -> None:
    first = build_cache(spec, workers=0)
    stamps = {path: path.stat().st_mtime_ns for path in Path(spec.path).rglob("*") if path.is_file()}
    assert build_cache(spec, workers=0) == first
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_another_format_is_named_and_refused(spec: CacheSpec) -> None:
    build_cache(spec, workers=0)
    with pytest.raises(CacheError, match=r"format\.enforce_eos: the cache has True, the config False") as caught:
        build_cache(replace(spec, options=EncoderOptions(enforce_eos=False)), workers=0)
    assert "set data.cache_dir to another folder, or remove" in str(caught.value)
    with pytest.raises(CacheError, match=r"format\.text_key: the cache has 'text', the config 'id'"):
        build_cache(replace(spec, row_format=TextFormat(text_key="id")), workers=0)


def test_another_tokenizer_is_named_and_refused(spec: CacheSpec, tmp_path: Path, tiny_texts: list[str]) -> None:
    from ponente.tokens.bpe import train_bpe

    train_bpe(tiny_texts, str(tmp_path / "other"), vocab_size=300)
    build_cache(spec, workers=0)
    before = files_of(spec.path)
    with pytest.raises(CacheError, match=r"tokenizer: the cache has .*400 ids.*the config .*other .300 ids"):
        build_cache(replace(spec, tokenizer=str(tmp_path / "other")), workers=0)
    assert files_of(spec.path) == before


@pytest.mark.parametrize("finished", [True, False])
def test_changed_sources_are_named_and_refused(
    spec: CacheSpec, tmp_path: Path, tiny_corpus: Path, finished: bool
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    spec = replace(spec, source=UrlSourceConfig(train_urls=(f"{corpus}/*.jsonl",)))
    build_cache(spec, workers=0)
    if not finished:
        (Path(spec.path) / "finished.json").unlink()
    changed = corpus / "03.jsonl"
    changed.write_text(changed.read_text().replace("the", "teh"))
    with pytest.raises(CacheError, match=r"03\.jsonl"):
        build_cache(spec, workers=0)
    shutil.copy(tiny_corpus / "03.jsonl", changed)
    build_cache(spec, workers=0)
    (corpus / "06.jsonl").write_text('{"text": "more"}\n')
    with pytest.raises(CacheError, match=r"06\.jsonl"):
        build_cache(spec, workers=0)


def test_a_cache_outlives_its_sources(spec: CacheSpec, tmp_path: Path, tiny_corpus: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    spec = replace(spec, source=UrlSourceConfig(train_urls=(f"{corpus}/0[0-5].jsonl",)))
    ledger = build_cache(spec, workers=0)
    shutil.rmtree(corpus)
    assert build_cache(spec, workers=0) == ledger


def test_a_bad_row_ends_the_build_with_its_file_and_line(spec: CacheSpec, tmp_path: Path) -> None:
    spec = with_lines(spec, tmp_path, ['{"text": "fine"}', '{"text": "brok', '{"text": "fine"}'])
    with pytest.raises(RefusedError, match=r"bad\.jsonl:2: ") as caught:
        build_cache(spec, workers=0)
    assert "max_bad_records allows 0" in str(caught.value)


def test_bad_rows_within_the_budget_are_listed_and_the_rest_is_used(spec: CacheSpec, tmp_path: Path) -> None:
    lines = ['{"text": "one"}', '{"text": null}', '{"id": 3}', '{"text": "two"}', "[]", '{"text": ""}']
    spec = replace(with_lines(spec, tmp_path, lines), max_bad_records=3)
    ledger = build_cache(spec, workers=0)
    assert (ledger.rows, ledger.bad_rows, ledger.empty_rows) == (2, 3, 1)
    listed = [json.loads(line) for line in (Path(spec.path) / "quarantine.jsonl").read_text().splitlines()]
    assert [(Path(row["path"]).name, row["line"]) for row in listed] == [("bad.jsonl", line) for line in (2, 3, 5)]
    assert "null" in listed[0]["error"] and listed[1]["excerpt"] == '{"id": 3}'


def test_the_budget_is_that_of_the_whole_cache(spec: CacheSpec, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n')
    spec = replace(spec, source=SingleFiles(train_urls=(f"{folder}/*.jsonl",)), max_bad_records=2)
    with pytest.raises(RefusedError, match=r"found 3 rows .*allows 2"):
        build_cache(spec, workers=0)
    assert build_cache(replace(spec, max_bad_records=3), workers=0).rows == 3


def test_a_corpus_without_a_word_is_refused(spec: CacheSpec, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no row with tokens"):
        build_cache(with_lines(spec, tmp_path, ['{"text": ""}']), workers=0)


def test_progress_ends_at_the_whole(spec: CacheSpec, tiny_corpus: Path) -> None:
    seen: list[BuildProgress] = []
    ledger = build_cache(spec, workers=0, on_progress=seen.append)
    total = sum(path.stat().st_size for path in tiny_corpus.iterdir())
    assert (seen[-1].documents, seen[-1].tokens) == (ledger.rows, ledger.tokens)
    assert seen[-1].source_bytes == seen[-1].total_bytes == total
    assert "documents" in str(seen[-1]) and "MB/s" in str(seen[-1])


def test_a_growing_cache_is_a_prefix_of_the_finished_one(spec: CacheSpec) -> None:
    build_cache(spec, workers=0)
    whole = open_cache(spec.path)
    tokens = whole.read(0, whole.tokens)
    (Path(spec.path) / "finished.json").unlink()
    segments = sorted((Path(spec.path) / "segments").iterdir())
    shutil.rmtree(segments[-2])
    growing = open_growing_cache(spec.path)
    assert not growing.is_finished and 0 < growing.tokens < whole.tokens
    assert growing.read(0, growing.tokens).tolist() == tokens[: growing.tokens].tolist()


def test_a_secret_in_a_url_is_not_stored(spec: CacheSpec) -> None:
    import fsspec

    with fsspec.open("memory://tok/en.jsonl?token=abcdef0123456789XYZ", "w") as file:
        file.write('{"text": "hello"}\n')
        file.write("broken\n")
    url = "memory://tok/en.jsonl?token=abcdef0123456789XYZ"
    build_cache(replace(spec, source=UrlSourceConfig(train_urls=(url,)), max_bad_records=1), workers=0)
    stored = b"".join(path.read_bytes() for path in Path(spec.path).rglob("*") if path.is_file())
    assert b"abcdef0123456789XYZ" not in stored
    assert read_plan(spec.path) is not None


@pytest.mark.parametrize("finished", [True, False])
def test_rows_that_would_be_taken_otherwise_are_refused(spec: CacheSpec, tmp_path: Path, finished: bool) -> None:
    (tmp_path / "play.txt").write_text("one line\nanother\n")
    spec = replace(spec, source=UrlSourceConfig(train_urls=(str(tmp_path / "play.txt"),)))
    assert build_cache(spec, workers=0).rows == 2
    if not finished:
        (Path(spec.path) / "finished.json").unlink()
    other = UrlSourceConfig(train_urls=(str(tmp_path / "play.txt"),), txt_unit=TxtUnit.DOCUMENT)
    with pytest.raises(CacheError, match=r"source\.txt_unit: the cache has 'line', the config 'document'"):
        build_cache(replace(spec, source=other), workers=0)


def test_sources_that_change_while_the_cache_is_built_are_found(spec: CacheSpec, tmp_path: Path) -> None:
    spec = with_lines(spec, tmp_path, ['{"text": "one"}'])

    def append(progress: BuildProgress) -> None:
        with open(tmp_path / "bad.jsonl", "a") as file:
            file.write('{"text": "two"}\n')

    with pytest.raises(CacheError, match=r"bad\.jsonl changed"):
        build_cache(spec, workers=0, on_progress=append)
    assert not (Path(spec.path) / "finished.json").exists()


def test_what_was_planned_but_not_begun_makes_way(spec: CacheSpec, tmp_path: Path) -> None:
    bad = with_lines(spec, tmp_path, ["broken"])
    with pytest.raises(RefusedError):
        build_cache(bad, workers=0)
    assert build_cache(with_lines(spec, tmp_path, ['{"text": "mended"}']), workers=0).rows == 1


def test_a_segment_that_is_gone_is_found_before_anybody_reads_it(spec: CacheSpec) -> None:
    ledger = build_cache(spec, workers=0)
    shutil.rmtree(Path(spec.path) / "segments" / ledger.segments[2].name)
    with pytest.raises(CacheError, match=f"without 1 of its .* segments, such as {ledger.segments[2].name}"):
        build_cache(spec, workers=0)


def test_a_finished_cache_needs_nothing_to_be_written(spec: CacheSpec) -> None:
    ledger = build_cache(spec, workers=0)
    (Path(spec.path) / ".lock").unlink()
    assert build_cache(spec, workers=0) == ledger
    assert not (Path(spec.path) / ".lock").exists()


def test_nothing_is_made_where_the_sources_cannot_be_read(spec: CacheSpec, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        build_cache(replace(spec, source=UrlSourceConfig(train_urls=("nowhere.jsonl",))), workers=0)
    assert not Path(spec.path).exists()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"input_ids": [70_000]}, "ids from 70000 to 70000 from Careless; needed ids below 400"),
        ({"input_ids": [1, 2]}, "found columns of lengths {'input_ids': 2}"),
        ({"input_ids": [1], "extra": [1]}, "'extra': 1"),
        ({}, "found columns of lengths {}"),
    ],
)
def test_a_format_that_gives_nonsense_is_refused(spec: CacheSpec, columns: dict[str, list[int]], said: str) -> None:
    class Careless(TextFormat):
        def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
            made = {name: np.array(values, np.uint32) for name, values in columns.items()}
            return lambda values: EncodedRows(columns=made, offsets=np.array([0, *[1] * len(values["text"])], np.int64))

    with pytest.raises(RefusedError, match=re.escape(said)):
        build_cache(replace(spec, row_format=Careless()), workers=0)


def test_a_unit_that_is_tried_again_has_nothing_of_the_first_try(spec: CacheSpec, tmp_path: Path) -> None:
    class Stumbling(TextFormat):
        def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
            encode, calls = super().encoder(tokenizer, options), itertools.count()

            def encode_or_stumble(values: Mapping[str, list[Any]]) -> EncodedRows:
                if next(calls) == 1:  # after a first batch
                    raise OSError("the network stumbled")
                return encode(values)

            return encode_or_stumble

    texts = ["wind " * 150_000, "sea " * 200_000, "sand " * 100_000]  # more than a batch
    spec = with_lines(replace(spec, segment_tokens=1 << 23), tmp_path, [json.dumps({"text": text}) for text in texts])
    build_cache(replace(spec, row_format=Stumbling()), workers=0)
    build_cache(replace(spec, path=str(tmp_path / "other")), workers=0)
    assert open_cache(spec.path).rows == 3
    assert files_of(spec.path) == files_of(str(tmp_path / "other"))


def test_splits_of_a_source_that_is_gone_are_those_with_finished_caches(
    tmp_path: Path, tiny_corpus: Path, tiny_tokenizer: str
) -> None:
    class Gone(UrlSourceConfig):
        def splits(self) -> list[str]:
            raise UserError("found no folder")

    def data(source: UrlSourceConfig) -> DataConfig:
        components = {"main": ComponentConfig(source=source)}
        return DataConfig(tokenizer=tiny_tokenizer, cache_dir=str(tmp_path), components=components)

    urls = (f"{tiny_corpus}/00.jsonl",)
    with pytest.raises(UserError, match="no folder"):
        cache_specs(data(Gone(train_urls=urls)))
    for one in cache_specs(data(UrlSourceConfig(train_urls=urls))):
        build_cache(one, workers=0)
    assert [one.name for one in cache_specs(data(Gone(train_urls=urls)))] == ["main/train"]
