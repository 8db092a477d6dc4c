"""Batches from token caches: how fast, how soon, and whether size matters; against Levanter's loader on the same ids.

Run:  .venv/bin/python benchmarks/loader.py [--levanter] [--help]
In:   three caches of together a billion tokens, made once in ~/.cache/ponente-data/bench/loader-N from real ids of
      corpus.py, tiled with noise.
Out:  tables, and last a line of JSON: tokens_per_second (block shuffle, warm page cache), tokens_per_second_cold,
      tokens_per_second_feistel, first_batch_seconds (of step 1,000,000, from opening the caches).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from corpus import PREPARED, note, prepared_corpus, print_composition, read_texts, shared_archive
from tokenization_peers.contestants import LEVANTER_PYTHON, levanter_is_installed

RECIPE = 1  # raise it when the data change
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}  # of the mixture, and of the tokens
BILLION, TEN_MILLION, PEER_TOKENS = 1_000_000_000, 10_000_000, 100_000_000
REAL_TEXT_BYTES = 200_000_000
NOISE = 0.05
SEGMENT_TOKENS = 1 << 23
BATCH, LENGTH = 256, 2048
FAR_STEP = 1_000_000
LEVANTER_STEPS = 96  # three of its prefetches
HERE = Path(__file__).resolve().parent


def main() -> None:
    flags = parse_flags()
    folder = prepared_caches()
    import jax

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    figures: dict[str, float] = {}
    print(f"batches of {BATCH} x {LENGTH} as device arrays ({jax.devices()[0].platform}), best of {flags.repeats}")
    for shuffle in ("block", "feistel"):
        for temperature in ("warm", "cold"):
            speeds = [
                throughput(folder / "billion", shuffle, temperature, flags.steps, sharding)
                for _ in range(flags.repeats)
            ]
            figures[f"{shuffle} {temperature}"] = max(speeds)
            print(f"  {shuffle:<8}{temperature:<6}{max(speeds) / 1e6:>8.1f} million tokens/s", end="")
            print(f"   (median {statistics.median(speeds) / 1e6:.1f})")
    speeds = {
        name: max(throughput(folder / name, "block", "warm", flags.steps, sharding) for _ in range(flags.repeats))
        for name in ("ten-million", "peer", "billion")
    }
    costs = ", ".join(f"{speeds['billion'] / speeds[name]:.2f}" for name in ("ten-million", "peer"))
    print(f"  cost of a batch of 10 and of 100 million tokens, in those of a billion: {costs}")
    waits = [first_batch(folder / "billion", sharding) for _ in range(max(5, flags.repeats))]
    print(f"  the first batch of step {FAR_STEP:,} is there {statistics.median(waits):.3f} s after opening", end="")
    print(f"   (all: {', '.join(f'{wait:.3f}' for wait in waits)})")
    if flags.levanter and levanter_is_installed():
        compare_levanter(folder, flags, sharding)
    summary = {
        "tokens_per_second": figures["block warm"],
        "tokens_per_second_cold": figures["block cold"],
        "tokens_per_second_feistel": figures["feistel warm"],
        "first_batch_seconds": statistics.median(waits),
    }
    print(json.dumps({name: round(value, 3) for name, value in summary.items()}))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--levanter", action="store_true", help="measure Levanter too (1.5 GB to install, once)")
    parser.add_argument("--steps", type=int, default=100, help="of each pass (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the best counts (default: %(default)s)")
    return parser.parse_args()


# What is measured


def stream_of(folder: Path, shuffle: str):  # type: ignore[no-untyped-def]
    """The stream over the three caches of a folder, as training opens it."""
    from ponente.batches.config import MixtureConfig
    from ponente.batches.rows import RowPolicy
    from ponente.batches.schedule import BatchSchedule
    from ponente.batches.shape import BatchShape
    from ponente.batches.training import RowSource, training_data
    from ponente.store.token_cache.cache import open_cache

    config = MixtureConfig(train_weights=WEIGHTS, shuffle=True if shuffle == "feistel" else None)
    sources = {name: RowSource(cache=open_cache(str(folder / name)), policy=RowPolicy()) for name in WEIGHTS}
    shape = BatchShape(length=LENGTH, max_documents=config.documents_per_row(LENGTH))
    return training_data(config, sources, BatchSchedule.of(BATCH), shape, seed=0).stream


def throughput(folder: Path, shuffle: str, temperature: str, steps: int, sharding: object) -> float:
    """Tokens a second of the loader, after its first batches, from a step that no pass has seen."""
    from ponente.batches.loader import Loader

    if temperature == "cold":
        forget(folder)
    else:
        remember(folder)
    start = int(np.random.default_rng().integers(0, 500_000))
    with Loader(stream_of(folder, shuffle), sharding, start=start, stop=start + steps + 5) as batches:
        began = 0.0
        for step, batch in batches:
            for array in batch:
                array.block_until_ready()
            if step == start + 4:
                began = time.perf_counter()
        seconds = time.perf_counter() - began
    return steps * BATCH * LENGTH / seconds


def first_batch(folder: Path, sharding: object) -> float:
    """Seconds from opening the caches to the first device batch of a far step, warm."""
    from ponente.batches.loader import Loader

    remember(folder)
    began = time.perf_counter()
    with Loader(stream_of(folder, "block"), sharding, start=FAR_STEP) as batches:
        _, batch = next(iter(batches))
        for array in batch:
            array.block_until_ready()
        return time.perf_counter() - began


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def remember(folder: Path) -> None:
    """Has the files in the page cache."""
    for path in files(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def forget(folder: Path) -> None:
    """Has none of the files in the page cache."""
    os.sync()
    for path in files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def compare_levanter(folder: Path, flags: argparse.Namespace, sharding: object) -> None:
    """Its loader on the same ids, both the best of as many passes."""
    print(f"  against Levanter, {PEER_TOKENS / 1e6:.0f} million tokens, warm, best of {flags.repeats}:")
    for shuffle in ("block", "feistel"):
        note(f"levanter, {shuffle}")
        ours = max(throughput(folder / "peer", shuffle, "warm", flags.steps, sharding) for _ in range(flags.repeats))
        passes = [levanter_pass(folder, shuffle) for _ in range(flags.repeats)]
        theirs = max(figures["tokens_per_second"] for figures in passes)
        first = min(figures["first_batch_again_seconds"] for figures in passes)
        print(f"  {shuffle:<8}ours {ours / 1e6:.1f}, Levanter {theirs / 1e6:.2f} million tokens/s", end="")
        print(f"   ours / it {ours / theirs:.1f}; its first batch of a step after {first:.1f} s, caches open")


def levanter_pass(folder: Path, shuffle: str) -> dict[str, float]:
    command = [str(LEVANTER_PYTHON), str(HERE / "loader_peers" / "levanter_loader.py"), str(folder / "plain")]
    weights = [str(weight) for weight in WEIGHTS.values()]
    command += ["--weights", *weights, "--shuffle", shuffle, "--steps", str(LEVANTER_STEPS)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"levanter_loader.py failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


# The data


def prepared_caches() -> Path:
    """The folder with the caches, made unless it is there."""
    folder = PREPARED / f"loader-{RECIPE}"
    if not folder.is_dir():
        note(f"making a billion tokens in {folder} (once)")
        private = folder.with_name(f".{folder.name}-{os.getpid()}")
        try:
            ids, lengths = real_tokens()
            sizes = {"billion": BILLION, "ten-million": TEN_MILLION, "peer": PEER_TOKENS}
            for name, total in sizes.items():
                for number, (dataset, share) in enumerate(WEIGHTS.items()):
                    tokens = tiled(ids, lengths, int(total * share), seed=number)
                    plain = private / "plain" / dataset if name == "peer" else None
                    write_cache(private / name / dataset, tokens, plain)
            private.rename(folder)
        finally:
            shutil.rmtree(private, ignore_errors=True)
    return folder


def real_tokens() -> tuple[np.ndarray, np.ndarray]:
    """Ids of real documents, in the vocabulary of GPT-2, and how many each document has."""
    from ponente.tokens.load import load_tokenizer

    corpus = prepared_corpus("gz")
    print_composition(corpus)
    tokenizer = load_tokenizer(str(shared_archive("tokenizers") / "gpt2"))
    ids, offsets = tokenizer.encode_flat(read_texts(corpus.shards, REAL_TEXT_BYTES))
    return ids.astype(np.uint16), np.diff(offsets)


def tiled(ids: np.ndarray, lengths: np.ndarray, total: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Segments of real documents in a new order each time, some of their ids replaced at random."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(lengths)
    while total > 0:
        order = random.permutation(len(lengths))
        count = int(np.searchsorted(np.cumsum(lengths[order]), min(SEGMENT_TOKENS, total))) + 1
        chosen = order[:count]
        segment = np.concatenate([ids[ends[one] - lengths[one] : ends[one]] for one in chosen])
        noisy = random.random(len(segment), np.float32) < NOISE
        segment[noisy] = random.integers(0, 50_000, int(noisy.sum()), np.uint16)
        yield segment, lengths[chosen]
        total -= len(segment)


def write_cache(folder: Path, segments: Iterator[tuple[np.ndarray, np.ndarray]], plain: Path | None) -> None:
    """A finished cache, segment by segment as the build writes it; with `plain`, the same ids as NumPy files."""
    from ponente.store.tensors import write_context
    from ponente.store.token_cache.ledger import CacheLedger, SegmentRecord, TokenizerRecord, write_ledger
    from ponente.store.token_cache.segment import SegmentNote, segment_name, write_segment

    note(f"writing {folder.parent.name}/{folder.name}")
    records, kept = [], []
    for number, (ids, lengths) in enumerate(segments):
        rows, tokens, name = len(lengths), len(ids), segment_name(number, 0)
        about = SegmentNote(rows=rows, tokens=tokens, next_row=rows, is_last=True, empty_rows=0, bad_rows=0)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        write_segment(str(folder), name, {"input_ids": ids}, offsets, about, [], write_context())
        records.append(SegmentRecord(name, rows, tokens))
        if plain is not None:
            kept.append((ids, lengths))
    ledger = CacheLedger(
        tokenizer=TokenizerRecord(name="gpt2", fingerprint="none", vocab_size=50257),
        row_format={"type": "text"},
        columns={"input_ids": "uint16"},
        rows=sum(record.rows for record in records),
        tokens=sum(record.tokens for record in records),
        empty_rows=0,
        bad_rows=0,
        sources=[],
        source_identity={},
        source_config={},
        segments=records,
    )
    write_ledger(str(folder), ledger)
    if plain is not None:
        plain.mkdir(parents=True)
        np.save(plain / "ids.npy", np.concatenate([ids for ids, _ in kept]))
        np.save(plain / "lengths.npy", np.concatenate([lengths for _, lengths in kept]))


if __name__ == "__main__":
    main()
