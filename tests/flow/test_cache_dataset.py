"""`ponente cache-dataset` as users call it: the YAML of Levanter's guide with only its paths changed, and its flags."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from guide import GUIDE

from ponente.store.token_cache.cache import open_cache

BY_ID = """
data:
    id: "EleutherAI/pile"
    # if needed:
    # name: "subset"
"""


def ponente(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    command = [sys.executable, "-m", "ponente", "cache-dataset", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


@pytest.fixture
def files(tmp_path: Path, tiny_texts: list[str]) -> Path:
    for kind, count in (("train", 32), ("valid", 4)):
        for number in range(1, count + 1):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in tiny_texts[number :: count * 4])
            (tmp_path / f"{kind}.{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return tmp_path


def with_paths(yaml: str, folder: Path, tokenizer: str) -> str:
    return yaml.replace("gs://path/to", str(folder)).replace('"gpt2"  # any', f'"{tokenizer}"  # any')


def test_the_guides_config_by_urls_builds_its_caches(files: Path, tiny_tokenizer: str, tiny_texts: list[str]) -> None:
    (files / "my_config.yaml").write_text(with_paths(GUIDE, files, tiny_tokenizer))
    first = ponente(files, "--config_path", "my_config.yaml")
    train, validation = open_cache(str(files / "cache/train")), open_cache(str(files / "cache/validation"))
    texts = [text for number in range(1, 33) for text in tiny_texts[number::128] if text]
    assert train.rows == len(texts) > 100 and validation.rows > 100
    assert f"{train.rows:,} documents, {train.tokens:,} tokens" in first.stdout
    again = ponente(files, "--config_path", "my_config.yaml")
    assert again.stdout == first.stdout
    snapshots = list((files / "cache" / ".configs").iterdir())
    assert len(snapshots) == 1 and str(files / "train.{1..32}.jsonl.gz") in snapshots[0].read_text()


def test_the_guides_config_by_id_builds_its_caches(tmp_path: Path, tiny_corpus: Path, tiny_tokenizer: str) -> None:
    pytest.importorskip("datasets", reason="wants the extra hub")
    folder = tmp_path / "pile"
    folder.mkdir()
    for split, name in (("train", "00"), ("validation", "01")):
        (folder / f"{split}.jsonl").write_text((tiny_corpus / f"{name}.jsonl").read_text())
    (tmp_path / "c.yaml").write_text(BY_ID.replace("EleutherAI/pile", str(folder)))
    flags = ["--data.tokenizer", tiny_tokenizer, "--data.cache_dir", "cache"]
    ponente(tmp_path, "--config_path", "c.yaml", *flags)
    assert open_cache(str(tmp_path / "cache/train")).rows > 50
    assert open_cache(str(tmp_path / "cache/validation")).rows > 50


def test_the_old_flags_are_understood(files: Path, tiny_tokenizer: str) -> None:
    (files / "c.yaml").write_text(with_paths(GUIDE, files, tiny_tokenizer))
    ended = ponente(files, "--config_path", "c.yaml", "--start_workers", "false", "--auto_start_cluster", "false")
    assert ended.stderr.count("nothing to start") == 2
    for flag in ("--address", "--cluster"):
        refused = ponente(files, "--config_path", "c.yaml", flag, "ray://head:10001", code=2).stderr
        assert "ponente cluster submit" in refused
    gone = ponente(files, "--config_path", "c.yaml", "--cluster", "127.0.0.1:9", code=2).stderr
    assert "found no Ray cluster at '127.0.0.1:9'" in gone


def test_another_tokenizer_is_refused_and_the_two_ways_out_are_said(files: Path, tiny_tokenizer: str) -> None:
    from ponente.tokens.bpe import train_bpe

    (files / "c.yaml").write_text(with_paths(GUIDE, files, tiny_tokenizer))
    ponente(files, "--config_path", "c.yaml")
    other = train_bpe(["one two three"], str(files / "other"), vocab_size=257)
    refused = ponente(files, "--config_path", "c.yaml", "--data.tokenizer", other, code=2)
    assert re.search(r"tokenizer: the cache has .*400 ids.*, the config .*other", refused.stderr)
    assert "put the config (or the sources) back" in refused.stderr and "another folder" in refused.stderr
    ponente(files, "--config_path", "c.yaml", "--data.tokenizer", other, "--data.cache_dir", "second")
    assert open_cache(str(files / "second/train")).tokenizer.vocab_size < 300


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data.tokeniser", "gpt2"], "tokenizer"),
        (["--data.train_urls", "nowhere/{1..3}.jsonl"], "nowhere/1.jsonl"),
        (["--data.tokenizer", "no/such/folder"], "no/such/folder"),
        (["--data.cache_dir", "memory://cache"], "not yet: memory://"),
        (["--config_path", "none.yaml"], "none.yaml"),
    ],
)
def test_what_cannot_work_is_said_before_any_work(
    files: Path, tiny_tokenizer: str, flags: list[str], said: str
) -> None:
    (files / "c.yaml").write_text(with_paths(GUIDE, files, tiny_tokenizer))
    ended = ponente(files, "--config_path", "c.yaml", *flags, code=2)
    assert said in ended.stderr
    assert not (files / "cache").exists() or not list((files / "cache").rglob("segments"))


PLUGIN = """
from dataclasses import dataclass

import numpy as np

from ponente.store.sources import Fingerprint, RowBatch, SourceConfig
from ponente.tokens.formats.format import EncodedRows, TokenFormat


@SourceConfig.register_subclass("letters")
@dataclass(frozen=True, kw_only=True)
class LettersConfig(SourceConfig):
    count: int = 3

    def splits(self):
        return ["train"]

    def units(self, split):
        return [{"first": first} for first in range(self.count)]

    def fingerprints(self, split):
        return [Fingerprint(path=f"letters-{self.count}", size=self.count, digest=str(self.count))]

    def read(self, unit, fields, *, skip=0):
        values = ["a", "bb", "ccc"][skip:]
        rows = list(range(skip, 3))
        yield RowBatch(values={"letters": values}, rows=rows, place=lambda row: ("letters", row + 1), next_row=3)


@TokenFormat.register_subclass("lengths")
@dataclass(frozen=True, kw_only=True)
class LengthsFormat(TokenFormat):
    def fields(self):
        return {"letters": str}

    def columns(self):
        return ("input_ids",)

    def encoder(self, tokenizer, options):
        def encode(values):
            lengths = np.array([len(text) for text in values["letters"]])
            return EncodedRows(
                columns={"input_ids": np.repeat(lengths, lengths).astype(np.uint32)},
                offsets=np.concatenate([[0], np.cumsum(lengths)]),
            )
        return encode

    def identity(self, tokenizer, options):
        return {"type": "lengths"}
"""


def test_a_source_and_a_format_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "c.yaml").write_text(
        "plugins: [mine.py]\n"
        "data: {tokenizer: passthrough, vocab_size: 10, components: "
        "{mine: {source: {type: letters, count: 2}, format: {type: lengths}}}}\n"
    )
    ponente(tmp_path, "--config_path", "c.yaml", "--workers", "2")
    cache = open_cache(str(tmp_path / "cache/mine/train"))
    assert cache.read(0, cache.tokens).tolist() == [1, 2, 2, 3, 3, 3] * 2
    refused = ponente(
        tmp_path, "--config_path", "c.yaml", "--data.components.mine.source.count", "3", "--workers", "0", code=2
    )
    assert "letters-2" in refused.stderr


def test_the_source_of_the_tokens_page_works_as_it_stands(tmp_path: Path, tiny_tokenizer: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tokens.md").read_text()
    code = re.search(r"```python\n(# my_sources\.py.*?)```", page, re.DOTALL)
    config = re.search(r"```yaml\n(plugins: .*?)```", page, re.DOTALL)
    assert code and config
    (tmp_path / "my_sources.py").write_text(code[1])
    (tmp_path / "c.yaml").write_text(config[1])
    ponente(tmp_path, "--config_path", "c.yaml", "--data.tokenizer", tiny_tokenizer)
    assert open_cache(str(tmp_path / "cache/mine/train")).rows == 15


def test_without_a_config_it_says_how_to_give_one(tmp_path: Path) -> None:
    assert "--config_path CONFIG.yaml" in ponente(tmp_path, code=2).stderr
    for flag in ("--workers=-1", "--data.max_bad_records=-1"):
        (tmp_path / "c.yaml").write_text("data: {train_urls: [a.jsonl]}\n")
        assert "needed 0" in ponente(tmp_path, "--config_path", "c.yaml", flag, code=2).stderr
