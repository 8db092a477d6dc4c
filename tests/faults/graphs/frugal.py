"""A small graph that writes through `os` alone, as the store does, so that a test can take the space away anywhere."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ponente.cluster import map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path, this_state_path
from ponente.store.volume import publishing

WORDS = [f"word-{number}" for number in range(6)]


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    output_path: str = this_output_path()


def write_words(config: WordsConfig) -> None:
    for word in WORDS:
        write(f"{config.output_path}/{word}.txt", f"{word}\n" * 50)


@dataclass(frozen=True, kw_only=True)
class CountConfig:
    words: str
    state_path: str = this_state_path()
    output_path: str = this_output_path("counts.json")


def count_words(config: CountConfig) -> None:
    """A map in this process, then a checkpoint."""
    shards = [f"{config.words}/{word}.txt" for word in WORDS]
    counts = map_shards(count_one, shards, name="counts", suffix=".txt", workers=0).values
    if not Path(config.state_path, "sum.json").exists():
        with publishing(f"{config.state_path}/sum.json") as private:
            write(private, json.dumps(sum(counts)))
    write(config.output_path, Path(config.state_path, "sum.json").read_text())


def count_one(shard: str, output_path: str) -> int:
    text = Path(shard).read_text()
    write(output_path, text.upper())
    return len(text)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    counts: str
    capitals: str
    output_path: str = this_output_path("report.txt")


def write_report(config: ReportConfig) -> None:
    capitals = "".join(path.read_text() for path in sorted(Path(config.capitals).glob("*.txt")))
    write(config.output_path, Path(config.counts).read_text() + capitals)


words = ExecutorStep(name="frugal/words", fn=write_words, config=WordsConfig())
counts = ExecutorStep(name="frugal/counts", fn=count_words, config=CountConfig(words=words))
report = ExecutorStep(
    name="frugal/report",
    fn=write_report,
    config=ReportConfig(counts=counts / "counts.json", capitals=counts / "counts"),
)

STEPS = [words, counts, report]

if __name__ == "__main__":
    executor_main(steps=[report], description=__doc__)
