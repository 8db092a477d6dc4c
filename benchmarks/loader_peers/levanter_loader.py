"""Levanter's data loader as its train_lm sets it up, on the CPU, over token ids that are given.

Run:  ~/.cache/ponente-bench/levanter/bin/python benchmarks/loader_peers/levanter_loader.py FOLDER [--help]
In:   FOLDER/{web,code,books} with ids.npy (uint16) and lengths.npy (int64, of the documents), made once into Levanter's
      caches in FOLDER/levanter-cache. Unlike train_lm's, the caches are opened without a tokenizer; all else is alike.
Out:  last a line of JSON: tokens_per_second, first_batch_seconds (of step 1,000,000, from opening the caches), levanter
      (its version); first_batch_again_seconds, without opening and compiling; steps, in whole prefetches.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")  # read on import

import jax
import numpy as np
import optax
from haliax import Axis
from levanter.data.loader import DataLoader
from levanter.data.text import BlockShuffleConfig, LmDataConfig
from levanter.data.text.datasets import CausalLmDataset, DirectDatasetComponent, TokenSeqDataset
from levanter.store.cache import LEDGER_FILE_NAME, CacheLedger, TreeCache
from levanter.store.jagged_array import PreparedBatch
from levanter.store.tree_store import TreeStore
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

DATASETS = ("web", "code", "books")
FIELD = "input_ids"
EXEMPLAR = {FIELD: np.zeros(1, np.int64)}  # the type of a cache that Levanter builds itself
WRITE_TOKENS = 1 << 26  # at once, for a write to a part of a file of Levanter's writes the whole file anew
BLOCK_SHUFFLE = BlockShuffleConfig(io_block_size=256, window_blocks=512, perm_type="feistel")
MIXTURE_BLOCK = 2048
END_OF_TEXT = 50256  # of GPT-2; where it stands, Levanter begins a new segment of its attention mask
FAR_STEP = 1_000_000
WARM_UP = 3


def main() -> None:
    flags = parse_flags()
    caches = flags.folder / "levanter-cache"
    for name in DATASETS:
        convert(flags.folder / name, caches / name)
    config = TrainerConfig(id="benchmark", train_batch_size=flags.batch, tracker=NoopConfig())
    for option, value in config.jax_config.items():
        jax.config.update(option, value)
    with Trainer(config, optax.identity(), no_loss, add_default_hooks=False) as trainer:
        figures = measure(trainer, caches, flags)
    print(json.dumps({**figures, "levanter": importlib.metadata.version("marin-levanter")}))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", type=float, nargs=len(DATASETS), default=[6, 3, 1], help=f"of {DATASETS}")
    parser.add_argument("--batch", type=int, default=256, help="sequences (default: %(default)s)")
    parser.add_argument("--length", type=int, default=2048, help="of a sequence (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="to time at least (default: %(default)s)")
    parser.add_argument("--start", type=int, default=1000, help="the first step (default: %(default)s)")
    parser.add_argument("--shuffle", choices=("block", "feistel"), default="block")
    return parser.parse_args()


def no_loss(*_: object) -> float:
    """For the trainer, which here only makes the loader."""
    return 0.0


# What is measured


def measure(trainer: Trainer, caches: Path, flags: argparse.Namespace) -> dict[str, float]:
    opened = time.perf_counter()
    loader = trainer.data_loader(training_data(trainer.config, caches, flags))
    with batches_from(loader, FAR_STEP) as batches:
        take(batches, flags)
        first_batch_seconds = time.perf_counter() - opened
    steps = -(-flags.steps // loader.prefetch_size) * loader.prefetch_size
    with batches_from(loader, flags.start) as batches:
        asked = time.perf_counter()
        take(batches, flags)
        again = time.perf_counter() - asked
        for _ in range(WARM_UP - 1):
            take(batches, flags)
        # The loader reads a whole prefetch and then hands out its batches. From any of them to the same one of a later
        # prefetch is an even share of both; fewer steps would only time the handing out.
        began = time.perf_counter()
        for _ in range(steps):
            take(batches, flags)
        seconds = time.perf_counter() - began
    return {
        "tokens_per_second": steps * flags.batch * flags.length / seconds,
        "first_batch_seconds": first_batch_seconds,
        "first_batch_again_seconds": again,
        "steps": steps,
    }


def training_data(config: TrainerConfig, caches: Path, flags: argparse.Namespace) -> Any:
    """The mixture of shuffled datasets that train_lm gets from the same config, caches newly opened."""
    position = Axis("position", flags.length)
    components = {}
    for name in DATASETS:
        sequences = TokenSeqDataset(TreeCache.load(str(caches / name), EXEMPLAR), flags.length)
        components[name] = DirectDatasetComponent({"train": CausalLmDataset(sequences, position, eos_id=END_OF_TEXT)})
    data = LmDataConfig(
        components=components,
        train_weights=dict(zip(DATASETS, flags.weights, strict=True)),
        shuffle=BLOCK_SHUFFLE if flags.shuffle == "block" else True,
        permutation_type="feistel",
        mixture_block_size=MIXTURE_BLOCK,
    )
    return data.train_set(position, config.batch_schedule, key=jax.random.PRNGKey(config.seed))


@contextmanager
def batches_from(loader: DataLoader, step: int) -> Iterator[Iterator[Any]]:
    batches = loader.iter_from_step(step)
    try:
        yield batches
    finally:
        batches._batches.stop()  # the iterator and its thread hold each other: left alone, it reads on to a full queue


def take(batches: Iterator[Any], flags: argparse.Namespace) -> None:
    """One batch, all of it on the device."""
    batch = jax.block_until_ready(next(batches))
    if batch.tokens.array.shape != (flags.batch, flags.length):
        raise ValueError(f"Levanter gave a batch of {batch.tokens.array.shape}, not {(flags.batch, flags.length)}.")


# Its caches


def convert(source: Path, target: Path) -> None:
    """A finished cache of the source's ids, made unless it is there."""
    ids, lengths = np.load(source / "ids.npy", mmap_mode="r"), np.load(source / "lengths.npy")
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] != len(ids):
        raise ValueError(f"{source} holds {len(ids)} ids, its documents have {lengths.sum()}. Write both files anew.")
    counts = {FIELD: len(ids)}
    if is_finished(target, len(lengths), counts):
        return
    shutil.rmtree(target, ignore_errors=True)
    array = TreeStore.open(EXEMPLAR, str(target), mode="w", cache_metadata=True).tree[FIELD]
    row = token = 0
    while row < len(ends):
        last = max(row + 1, int(np.searchsorted(ends, token + WRITE_TOKENS, side="right")))
        end = int(ends[last - 1])
        array.extend(PreparedBatch(ids[token:end].astype(np.int64), ends[row:last] - token, None))
        row, token = last, end
    ledger = CacheLedger(
        total_num_rows=len(lengths),
        shard_rows={"": len(lengths)},
        is_finished=True,
        finished_shards=[""],
        field_counts=counts,
    )
    (target / LEDGER_FILE_NAME).write_text(ledger.to_json())


def is_finished(cache: Path, rows: int, counts: dict[str, int]) -> bool:
    if not (cache / LEDGER_FILE_NAME).is_file():
        return False
    ledger = CacheLedger.load(str(cache))
    return ledger.is_finished and ledger.total_num_rows == rows and ledger.field_counts == counts


if __name__ == "__main__":
    main()
