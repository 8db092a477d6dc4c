"""The build of a token cache against Levanter's, and against bare encoders on texts in memory, on the same cores.

Run:  .venv/bin/python benchmarks/tokenization.py [--levanter] [--help]
In:   the text of corpus.py; the GPT-2 and Llama 3.1 tokenizers of ../shared/data; with --levanter, the packages of
      tokenization_peers/levanter.lock, installed into ~/.cache/ponente-bench/levanter on first use.
Out:  tables, and last a line of JSON, of the worse vocabulary: vs_levanter, vs_tokenizers, vs_fastest (our text bytes a
      second / theirs; of ours and of Levanter the build is timed, without imports) and peak_memory_4x_over_1x.
"""
# Run as benchmarks/tokenize.py too. It lies here because a file of that name hides the standard library's `tokenize`.

import argparse
import gzip
import importlib.metadata
import itertools
import json
import os
import platform
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corpus import COMPRESSORS, Unavailable, note, prepared_corpus, print_composition, read_texts, shared_archive
from tokenization_peers.contestants import (
    FASTEST,
    LEVANTER,
    LEVANTER_LOCK,
    OURS,
    PEERS,
    TOKENIZERS,
    BenchmarkError,
    Pass,
    Setting,
    last_json,
    levanter_is_installed,
    our_command,
    our_opening,
    our_start_seconds,
    output_of,
    run_fastest,
    run_levanter,
    run_ours,
    run_raw,
    run_tokenizers,
)

VOCABULARIES = ("gpt2", "llama3.1")
NOISE_CORES = 0.2
WANTED = {"vs_levanter": 20, "vs_tokenizers": 15, "vs_fastest": 0.5, "peak_memory_4x_over_1x": 1.1}


def main() -> None:
    flags = parse_flags()
    if flags.cluster:
        import cluster

        cluster.run(argparse.Namespace(shards=10_000, repeats=flags.repeats))
        return
    try:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.cores])  # and so of all that is started here
        with tempfile.TemporaryDirectory(prefix="ponente-bench-") as work:
            benchmark(Path(work), flags)
    except (BenchmarkError, Unavailable) as error:
        sys.exit(f"BenchmarkError: {error}")


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--levanter", action="store_true", help="measure Levanter too (1.5 GB to install, once)")
    parser.add_argument("--cluster", action="store_true", help="nothing but our build on a Ray cluster: cluster.py")
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES, default=VOCABULARIES)
    parser.add_argument("--compression", choices=COMPRESSORS, default="gz", help="of our input (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="that all may use (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the median counts (default: %(default)s)")
    parser.add_argument("--tokenizers_megabytes", type=int, default=30, help="of text (default: %(default)s)")
    parser.add_argument("--levanter_megabytes", type=int, default=20, help="of text (default: %(default)s)")
    flags = parser.parse_args()
    if flags.repeats < 1 or flags.cores < 1:
        parser.error("--repeats and --cores are 1 or more")
    return flags


def benchmark(work: Path, flags: argparse.Namespace) -> None:
    has_levanter = flags.levanter and levanter_is_installed()
    corpus = prepared_corpus(flags.compression)
    print_machine(has_levanter)
    print_composition(corpus)
    plain = prepared_corpus("gz").shards
    head = read_texts(plain, flags.tokenizers_megabytes * 1_000_000)
    levanter_texts = read_texts(plain, flags.levanter_megabytes * 1_000_000) if has_levanter else []
    summaries = []
    for vocabulary in flags.vocabularies:
        tokenizer = tokenizer_folder(vocabulary)
        if tokenizer is None:
            continue
        setting = Setting(
            tokenizer=tokenizer,
            corpus=corpus,
            head=head,
            levanter_shards=write_shards(levanter_texts, work / "levanter-text", flags.cores),
            levanter_bytes=sum(len(text.encode()) for text in levanter_texts),
            work=work,
            flags=flags,
        )
        summaries.append(compare(vocabulary, setting))
    if not summaries:
        raise BenchmarkError(f"none of the tokenizers {', '.join(flags.vocabularies)} is here; see ../shared/data.")
    print_summary(summaries)


def tokenizer_folder(vocabulary: str) -> Path | None:
    try:
        folder = shared_archive("tokenizers") / vocabulary
    except Unavailable as error:
        note(f"no {vocabulary}: {error}")
        return None
    if not folder.is_dir():
        note(f"no {vocabulary}: there is no {folder}")
        return None
    return folder


def write_shards(texts: list[str], folder: Path, count: int) -> list[Path]:
    """The texts as `count` files of JSON lines, gz: Levanter gives each file a worker."""
    folder.mkdir(exist_ok=True)
    shards = [folder / f"text-{number}.jsonl.gz" for number in range(count)] if texts else []
    for number, shard in enumerate(shards):
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts[number::count])
        shard.write_bytes(gzip.compress(lines.encode(), compresslevel=6))
    return shards


# One vocabulary


def compare(vocabulary: str, setting: Setting) -> dict[str, float | None]:
    """Race the contestants, check that their tokens are the same, and measure our memory."""
    contestants = {OURS: run_ours, FASTEST: run_fastest, TOKENIZERS: run_tokenizers}
    if setting.levanter_shards:
        contestants[LEVANTER] = run_levanter
    passes: dict[str, list[Pass]] = {name: [] for name in contestants}
    for number in range(1, setting.flags.repeats + 1):
        for name, contestant in contestants.items():
            note(f"{vocabulary}, round {number} of {setting.flags.repeats}: {name}")
            os.sync()  # or the disk would still be writing what another left
            with foreign_load(name, vocabulary):
                passes[name].append(contestant(setting))
    print_race(vocabulary, passes)
    print_start(setting, statistics.median(run.seconds for run in passes[OURS]))
    for count, figures in our_opening(setting).items():
        seconds, grown = figures["open_seconds"], figures["grown_bytes"] / 1e6
        print(f"  a cache of {count} segments is opened and read in {seconds:.3f} s, memory grows by {grown:.1f} MB")
    check_tokens(setting, passes)
    speeds = {name: median_speed(runs) for name, runs in passes.items()}
    memory = measure_memory(vocabulary, setting)
    return {
        "vs_levanter": speeds[OURS] / speeds[LEVANTER] if LEVANTER in speeds else None,
        "vs_tokenizers": speeds[OURS] / speeds[TOKENIZERS],
        "vs_fastest": speeds[OURS] / speeds[FASTEST],
        "peak_memory_4x_over_1x": memory,
    }


@contextmanager
def foreign_load(name: str, vocabulary: str) -> Iterator[None]:
    """Say so when processes that are not ours kept a good part of a core busy meanwhile."""
    start, busy, own = time.perf_counter(), busy_seconds(), own_seconds()
    yield
    cores = (busy_seconds() - busy - own_seconds() + own) / (time.perf_counter() - start)
    if cores > NOISE_CORES:
        print(f"unquiet: other processes used {cores:.1f} cores during a pass of {name}, {vocabulary}")


def busy_seconds() -> float:
    """What all cores have worked since the machine started, and what the host took from them."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


# Are they the same tokens?


def check_tokens(setting: Setting, passes: dict[str, list[Pass]]) -> None:
    """Fail when ours are not the reference's; say how Levanter's differ."""
    fastest, reference = passes[FASTEST][0], passes[TOKENIZERS][0]
    expect("fastokens' ids of the first documents", fastest.head_sha256, reference.head_sha256)
    around = (passes[OURS][0].tokens - fastest.tokens) // fastest.documents
    for ours in passes[OURS]:
        expect("our documents", ours.documents, fastest.documents)
        expect("our tokens", ours.tokens, fastest.tokens + around * fastest.documents)
        expect("our ids of the first documents", ours.head_sha256, reference.head_sha256)
    print(f"  ids: ours equal those of tokenizers in the first {reference.documents:,} documents; in all, we have")
    print(f"  as many as fastokens, and {around} more for each (which ends it, or begins and ends it)")
    if LEVANTER in passes:
        levanter = passes[LEVANTER][0]
        expected = levanter_tokens(setting)
        same = "exactly" if levanter.tokens == expected else f"{levanter.tokens - expected:+,} tokens from"
        print(f"  Levanter's count is {same} what its own rule gives (begin, text, a space, end): {expected:,}")


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise BenchmarkError(f"{what}: found {found}, and it must be {wanted}; a speed with other tokens says nothing.")


def levanter_tokens(setting: Setting) -> int:
    """Levanter encodes each text with a space and the end token behind it, and puts the begin token before it."""
    config = json.loads((setting.tokenizer / "tokenizer_config.json").read_text())
    end = config["eos_token"] if isinstance(config["eos_token"], str) else config["eos_token"]["content"]
    megabytes = str(setting.flags.levanter_megabytes)
    encoded = run_raw(setting, FASTEST, "--megabytes", megabytes, "--suffix", f" {end}")
    return encoded.tokens + (encoded.documents if config.get("bos_token") else 0)


# Memory


def measure_memory(vocabulary: str, setting: Setting) -> float:
    """Our peak on the corpus four times over / our peak on the corpus, each the highest of the repeats."""
    shards = {times: copies(setting.corpus.shards, setting.work / f"memory-{times}", times) for times in (1, 4)}
    peaks: dict[int, list[dict[str, int]]] = {1: [], 4: []}
    for times, runs in itertools.product(peaks, range(min(2, setting.flags.repeats))):
        note(f"{vocabulary}, memory at {times}x, pass {runs + 1}")
        command = our_command(setting, shards[times], setting.work / "cache")
        figures = last_json(output_of([sys.executable, str(PEERS / "peak_memory.py"), *command]))
        peaks[times].append(figures)
        shutil.rmtree(setting.work / "cache")
    for times, figures in peaks.items():
        held = ", ".join(f"{run['peak_bytes'] / 1e6:.0f}" for run in figures)
        resident = ", ".join(f"{run['high_water_bytes'] / 1e6:.0f}" for run in figures)
        print(
            f"  peak memory at {times}x ({setting.corpus.text_bytes * times / 1e6:.0f} MB): {held} MB in all processes",
            end="",
        )
        print(f" (their resident peaks summed: {resident})")
    highest = {times: max(run["peak_bytes"] for run in figures) for times, figures in peaks.items()}
    return highest[4] / highest[1]


def copies(shards: list[Path], folder: Path, times: int) -> list[Path]:
    """Links to the shards, each under `times` names."""
    folder.mkdir(exist_ok=True)
    links = [folder / f"{number}-{shard.name}" for number in range(times) for shard in shards]
    for link, shard in zip(links, shards * times, strict=True):
        if not link.is_symlink():
            link.symlink_to(shard)
    return links


# Printing


def print_machine(has_levanter: bool) -> None:
    print(f"machine: {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores used by all, {cpu_name()}, ", end="")
    print(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    versions = {name: importlib.metadata.version(name) for name in (OURS, FASTEST, TOKENIZERS)}
    if has_levanter:
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", LEVANTER_LOCK.read_text(), flags=re.MULTILINE))
        versions["marin-levanter"] = f"{pinned['marin-levanter']} (tokenizers {pinned['tokenizers']})"
    print("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return found.group(1) if found else "unnamed CPU"


def print_race(vocabulary: str, passes: dict[str, list[Pass]]) -> None:
    ours = median_speed(passes[OURS])
    what = {
        OURS: "compressed files to a finished cache, without imports",
        FASTEST: "texts in memory, encode_batch_flat, first pass",
        TOKENIZERS: "texts in memory, encode_batch_fast",
        LEVANTER: "compressed files to a finished cache, without imports",
    }
    print(f"\n{vocabulary}: median and best of {len(passes[OURS])}")
    columns = "  {:<12}{:>10}{:>10}{:>10}{:>10}{:>14}{:>12}   {}"
    print(columns.format("", "MB/s", "best", "seconds", "MB", "tokens", "ours / it", "what").rstrip())
    for name, runs in passes.items():
        first, median = runs[0], median_speed(runs)
        row = (
            f"{median:.2f}",
            f"{max(run.megabytes_per_second for run in runs):.2f}",
            f"{first.text_bytes / 1e6 / median:.2f}",
            f"{first.text_bytes / 1e6:.1f}",
            f"{first.tokens:,}",
            f"{ours / median:.2f}",
        )
        print(columns.format(name, *row, what[name]))
        if first.says:
            print(f"  {'':<12}it says: {first.says}")


def median_speed(runs: list[Pass]) -> float:
    """MB/s of the middle pass. A best one would favour who is measured for a shorter time, for the machine drifts."""
    return statistics.median(run.megabytes_per_second for run in runs)


def print_start(setting: Setting, whole: float) -> None:
    """How much of our time is the start, and how fast the rest is."""
    start = statistics.median(our_start_seconds(setting) for _ in range(setting.flags.repeats))
    rest = setting.corpus.text_bytes / 1e6 / (whole - start)
    print(
        f"  `ponente cache-dataset` of one short document: {start:.2f} s, imports and all; the rest at {rest:.1f} MB/s"
    )


def print_summary(summaries: list[dict[str, float | None]]) -> None:
    """What was wanted, and the line of JSON: of each figure the worse of the vocabularies."""
    worst: dict[str, float | None] = {}
    print()
    for name, wanted in WANTED.items():
        figures = [summary[name] for summary in summaries]
        known = [figure for figure in figures if figure is not None]
        worst[name] = None
        if known:
            is_ceiling = name.startswith("peak")
            worst[name] = round(max(known) if is_ceiling else min(known), 3)
            bound = f"at most {wanted}" if is_ceiling else f"at least {wanted}"
            print(f"{name}: {', '.join(f'{figure:.3g}' for figure in known)} (wanted: {bound})")
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
