"""Attention kernels with documents held apart, on one GPU.

Run:  python benchmarks/attention.py [--help]   (needs a GPU and JAX with CUDA)
Out:  milliseconds forward and backward of 8 rows of 2,048, 16 heads of 128, bf16, 8 documents a row: plain causal,
      cuDNN's packed form by the places a row in its tables, a dense mask. Last a line of JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # on a lent machine nothing is installed

import jax
import jax.numpy as jnp
import numpy as np

from ponente.ops.attention import Mask, attend

ROWS, LENGTH, HEADS, SIZE, DOCUMENTS = 8, 2048, 16, 128, 8
PLACES = (8, 16, 32, 64, 128, 256)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if jax.default_backend() != "gpu":
        sys.exit("found no GPU; needed one, with JAX for CUDA")
    figures = {"plain": attention(Mask())}
    for places in PLACES:
        figures[f"places_{places}"] = attention(packed(places))
    figures["dense"] = attention(Mask(segment_ids_BS=packed(8).segment_ids_BS))
    for name, milliseconds in figures.items():
        print(f"  {name:<12}{milliseconds:>8.2f} ms   plain / it {figures['plain'] / milliseconds:.2f}", flush=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def packed(places: int) -> Mask:
    """Rows of eight documents of random lengths, in tables with so many places a row."""
    random = np.random.default_rng(0)
    firsts = [
        row * LENGTH + np.sort(np.append(random.choice(np.arange(1, LENGTH), DOCUMENTS - 1, replace=False), 0))
        for row in range(ROWS)
    ]
    starts, lengths = np.full(ROWS * places, ROWS * LENGTH, np.int32), np.zeros(ROWS * places, np.int32)
    found = np.concatenate(firsts)
    starts[: len(found)], lengths[: len(found)] = found, np.diff(found, append=ROWS * LENGTH)
    segments = np.repeat(np.arange(len(found)), lengths[: len(found)]).reshape(ROWS, LENGTH).astype(np.int32)
    return Mask(
        segment_ids_BS=jnp.asarray(segments),
        document_starts_BM=jnp.asarray(starts.reshape(ROWS, places)),
        document_lengths_BM=jnp.asarray(lengths.reshape(ROWS, places)),
    )


def attention(mask: Mask) -> float:
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(key, (ROWS, LENGTH, HEADS, SIZE), jnp.bfloat16) for key in keys]
    total = lambda q, k, v: attend(q, k, v, mask).astype(jnp.float32).sum() * 1e-3  # noqa: E731
    step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    return 1e3 * median(lambda: jax.block_until_ready(step(*arrays)), 10)


def median(run: Callable[[], object], times: int) -> float:
    run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[times // 2]


if __name__ == "__main__":
    main()
