"""Which words does Shakespeare use most, and who speaks most? A first graph of steps.

Run:   make quickstart                                       # or:
       python experiments/tutorials/word_count.py --dry_run  # the plan: what would run, and why
       python experiments/tutorials/word_count.py            # the second time every step is a hit
Cost:  a few seconds on a laptop.   Expected: "the" leads with 6,281, Gloucester speaks most words.

Change TOP or MIN_LENGTH below and run it again: only what depends on it runs, and `--dry_run` names the field.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ponente.cluster import map_shards
from ponente.config import execution
from ponente.executor import ExecutorStep, Summary, executor_main, this_output_path
from ponente.store.documents import Document, read_documents, write_documents
from ponente.store.expansion import expand

TOP = 8
MIN_LENGTH = 1


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A text that is known by its content; where it lies on this machine is no part of its identity."""

    sha256: str
    path: str = execution()
    output_path: str = this_output_path("text.txt")


def copy_text(config: TextConfig) -> None:
    """Brings a text under the prefix, and makes sure that it is the one that was meant."""
    data = Path(config.path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != config.sha256:
        raise ValueError(f"found {config.path} with sha256 {found}; needed {config.sha256}. Restore it from git")
    Path(config.output_path).write_bytes(data)


@dataclass(frozen=True, kw_only=True)
class SpeechesConfig:
    """Speeches of a play as documents, in so many shards."""

    text: str
    num_shards: int = 8
    output_path: str = this_output_path("documents")


def split_speeches(config: SpeechesConfig) -> Summary:
    """One document a speech; the speaker is its metadata."""
    speeches = list(_speeches(Path(config.text).read_text()))
    for shard in range(config.num_shards):
        write_documents(f"{config.output_path}/{shard:05d}.parquet", speeches[shard :: config.num_shards])
    return Summary(values={"speeches": len(speeches)})


def _speeches(text: str) -> Iterator[Document]:
    for number, block in enumerate(text.split("\n\n")):
        speaker, _, speech = block.strip().partition(":\n")
        if speech:
            yield Document(
                id=f"speech-{number:05d}", text=speech, source="tinyshakespeare", metadata={"speaker": speaker}
            )


@dataclass(frozen=True, kw_only=True)
class CountsConfig:
    """Words of document shards, counted shard by shard."""

    documents: str


def count_words(config: CountsConfig) -> None:
    """A sharded map: killed at any moment, it goes on with what is left. Children read `step / "counts"`."""
    map_shards(count_shard, expand(f"{config.documents}/*.parquet"), name="counts", suffix=".json")


def count_shard(shard: str, output_path: str) -> int:
    """Counts the words of one shard."""
    words: Counter[str] = Counter()
    for document in read_documents(shard):
        words.update(_words(document.text))
    Path(output_path).write_text(json.dumps(words, sort_keys=True))
    return words.total()


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalpha() or letter == "'" else " " for letter in text.lower()).split()


@dataclass(frozen=True, kw_only=True)
class TotalsConfig:
    """Counts of shards, added up."""

    counts: str
    output_path: str = this_output_path("totals.json")


def add_up(config: TotalsConfig) -> None:
    """Adds the shards' counts."""
    totals: Counter[str] = Counter()
    for path in expand(f"{config.counts}/*.json"):
        totals.update(json.loads(Path(path).read_text()))
    Path(config.output_path).write_text(json.dumps(totals, sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class SpeakersConfig:
    """How many words each speaker says."""

    documents: str
    output_path: str = this_output_path("speakers.json")


def count_speakers(config: SpeakersConfig) -> None:
    """Counts words by speaker; speakers are written in capitals in some plays."""
    speakers: Counter[str] = Counter()
    for path in expand(f"{config.documents}/*.parquet"):
        for document in read_documents(path):
            speakers[document.metadata["speaker"].title()] += len(_words(document.text))
    Path(config.output_path).write_text(json.dumps(speakers, sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The most frequent words of a least length, and the speakers who say most."""

    totals: str
    speakers: str
    top: int
    min_length: int = 1
    output_path: str = this_output_path("report.txt")


def write_report(config: ReportConfig) -> Summary:
    """Writes the two tables as text."""
    totals = json.loads(Path(config.totals).read_text())
    words = Counter({word: count for word, count in totals.items() if len(word) >= config.min_length})
    speakers = Counter(json.loads(Path(config.speakers).read_text()))
    lines = [f"{words.total():,} words, {len(words):,} different"]
    pairs = zip(words.most_common(config.top), speakers.most_common(config.top), strict=True)
    lines += [f"  {word:<12}{count:>7,}   {speaker:<20}{said:>7,}" for (word, count), (speaker, said) in pairs]
    Path(config.output_path).write_text("\n".join(lines) + "\n")
    return Summary(values={"words": words.total(), "different": len(words)})


text = ExecutorStep(
    name="tutorial/text",
    fn=copy_text,
    config=TextConfig(
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        path=str(Path(__file__).with_name("shakespeare.txt")),
    ),
)
speeches = ExecutorStep(name="tutorial/speeches", fn=split_speeches, config=SpeechesConfig(text=text / "text.txt"))
counts = ExecutorStep(name="tutorial/counts", fn=count_words, config=CountsConfig(documents=speeches / "documents"))
totals = ExecutorStep(name="tutorial/totals", fn=add_up, config=TotalsConfig(counts=counts / "counts"))
speakers = ExecutorStep(
    name="tutorial/speakers", fn=count_speakers, config=SpeakersConfig(documents=speeches / "documents")
)
report = ExecutorStep(
    name="tutorial/report",
    fn=write_report,
    config=ReportConfig(
        totals=totals / "totals.json", speakers=speakers / "speakers.json", top=TOP, min_length=MIN_LENGTH
    ),
)

if __name__ == "__main__":
    outcome = executor_main(steps=[report], description=__doc__)
    if outcome is not None and report in outcome:
        print(Path(outcome.path(report / "report.txt")).read_text(), end="")
