"""Who is timed by tokenization.py, and how: our build, two bare encoders, and Levanter's build.

In:   a Setting: tokenizer, corpus, folder to work in.
Out:  a Pass: seconds, text bytes and tokens of one run in a process of its own.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from corpus import Corpus, note, prepared_corpus

PEERS = Path(__file__).resolve().parent
LEVANTER_LOCK = PEERS / "levanter.lock"
LEVANTER_FOLDER = Path.home() / ".cache" / "ponente-bench" / "levanter"
LEVANTER_PYTHON = LEVANTER_FOLDER / "bin" / "python"
OURS, FASTEST, TOKENIZERS, LEVANTER = "ponente", "fastokens", "tokenizers", "levanter"


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message is for the one who runs it."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One contestant's run: over so much text in so many seconds, to so many tokens."""

    seconds: float
    text_bytes: int
    documents: int
    tokens: int
    says: str = ""  # its own words on its speed
    head_tokens: int = 0
    head_sha256: str = ""  # of the ids of the first documents, by which two are compared

    @property
    def megabytes_per_second(self) -> float:
        return self.text_bytes / 1e6 / self.seconds


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every contestant of a vocabulary works on, and where."""

    tokenizer: Path
    corpus: Corpus
    head: list[str]  # the texts that `tokenizers` encodes: the first of the corpus
    levanter_shards: list[Path]  # the first texts again, in files of their own; none without Levanter
    levanter_bytes: int
    work: Path
    flags: argparse.Namespace


def run_ours(setting: Setting) -> Pass:
    """Our build from compressed files to a finished cache; as with Levanter, imports are left out."""
    cache = setting.work / "cache"
    config = our_config(setting, setting.corpus.shards, cache)
    figures = last_json(output_of([sys.executable, str(PEERS / "our_cache.py"), str(config)]))
    ledger = our_ledger(cache)
    head_tokens, head_sha256 = our_head(ledger.parent, len(setting.head))
    shutil.rmtree(cache)
    return Pass(text_bytes=setting.corpus.text_bytes, head_tokens=head_tokens, head_sha256=head_sha256, **figures)


def our_start_seconds(setting: Setting) -> float:
    """What a build of one short document takes: Python, imports, the tokenizer, its check, the workers."""
    shard, cache = setting.work / "one.jsonl", setting.work / "cache"
    shard.write_text(json.dumps({"text": "One short document."}) + "\n")
    start = time.perf_counter()
    output_of(our_command(setting, [shard], cache))
    seconds = time.perf_counter() - start
    shutil.rmtree(cache)
    return seconds


def our_opening(setting: Setting) -> dict[str, Any]:
    """Seconds and memory of opening our caches of few and of many segments."""
    shard, cache = setting.work / "one.jsonl", setting.work / "cache"
    shard.write_text(json.dumps({"text": "One short document."}) + "\n")
    output_of(our_command(setting, [shard], cache))
    script = [sys.executable, str(PEERS / "many_shards.py"), str(our_ledger(cache).parent), str(setting.work)]
    figures = last_json(output_of(script))
    shutil.rmtree(cache)
    return figures


def our_command(setting: Setting, shards: list[Path], cache: Path) -> list[str]:
    return [sys.executable, "-m", "ponente", "cache-dataset", "--config_path", str(our_config(setting, shards, cache))]


def our_config(setting: Setting, shards: list[Path], cache: Path) -> Path:
    config = setting.work / "config.yaml"
    data = {"cache_dir": str(cache), "tokenizer": str(setting.tokenizer), "train_urls": [str(path) for path in shards]}
    config.write_text(yaml.safe_dump({"data": data}))
    return config


def our_ledger(cache: Path) -> Path:
    """The ledger of the one finished cache under the folder."""
    finished = list(cache.rglob("finished.json"))
    if len(finished) != 1:
        raise BenchmarkError(f"ponente cache-dataset left {len(finished)} finished caches under {cache}, and not one.")
    return finished[0].with_name("ledger.json")


def our_head(cache: Path, documents: int) -> tuple[int, str]:
    """The tokens and the hash of the first documents' ids, without what the build put around each."""
    from ponente.store.token_cache.cache import open_cache

    rows = open_cache(str(cache))
    ids = [rows.row(number)["input_ids"] for number in range(min(documents, rows.rows))]
    ends = {int(row[-1]) for row in ids}
    begins = {int(row[0]) for row in ids}
    first = 1 if len(begins) == 1 else 0
    last = -1 if len(ends) == 1 else None
    digest = hashlib.sha256()
    for row in ids:
        digest.update(row[first:last].astype("<u4").tobytes())
    return sum(len(row[first:last]) for row in ids), digest.hexdigest()


def run_fastest(setting: Setting) -> Pass:
    return run_raw(setting, FASTEST, "--head", str(len(setting.head)))


def run_tokenizers(setting: Setting) -> Pass:
    return run_raw(setting, TOKENIZERS, "--megabytes", str(setting.flags.tokenizers_megabytes))


def run_raw(setting: Setting, engine: str, *flags: str) -> Pass:
    shards = [str(shard) for shard in prepared_corpus("gz").shards]
    tokenizer = str(setting.tokenizer / "tokenizer.json")
    script = [sys.executable, str(PEERS / "raw_encoder.py"), engine, tokenizer, *shards, *flags]
    return Pass(**last_json(output_of(script)))


def run_levanter(setting: Setting) -> Pass:
    cache = setting.work / "levanter-cache"
    script = [str(LEVANTER_PYTHON), str(PEERS / "levanter_cache.py"), str(setting.tokenizer), str(cache)]
    environment = {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "MARIN_PREFIX": str(setting.work / "marin")}
    figures = last_json(output_of([*script, *(str(shard) for shard in setting.levanter_shards)], environment))
    shutil.rmtree(cache)
    return Pass(text_bytes=setting.levanter_bytes, **figures)


# Levanter's environment and other processes


def levanter_is_installed() -> bool:
    """Install it unless it is there; False, and the reason told, when that fails."""
    stamp = LEVANTER_FOLDER / "installed.lock"
    if stamp.is_file() and stamp.read_text() == LEVANTER_LOCK.read_text():
        return True
    note(f"installing Levanter into {LEVANTER_FOLDER} (once)")
    pip = [sys.executable, "-m", "pip", "--python", str(LEVANTER_PYTHON), "--disable-pip-version-check", "install"]
    try:
        output_of([sys.executable, "-m", "venv", "--clear", "--without-pip", str(LEVANTER_FOLDER)])
        output_of([*pip, "--quiet", "--no-deps", "--requirement", str(LEVANTER_LOCK)])
    except BenchmarkError as error:
        note(f"{error}\nLevanter is left out; its ratio is null.")
        return False
    stamp.write_text(LEVANTER_LOCK.read_text())
    return True


def output_of(command: list[str], environment: dict[str, str] | None = None) -> str:
    """The standard output of a process that must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-30:])
        raise BenchmarkError(f"exit code {done.returncode} from: {' '.join(command)}\nThe end of its stderr:\n{last}")
    return done.stdout


def last_json(output: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(output.strip().rpartition("\n")[2])
    return figures
