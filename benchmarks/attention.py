"""Attention kernels with documents held apart, and a bare training step of our Llama, on one GPU.

Run:  python benchmarks/attention.py [--model] [--help]   (needs a GPU and JAX with CUDA; --model takes 100 GB of it)
Out:  milliseconds forward and backward of 8 rows of 2,048, 16 heads of 128, bf16: plain causal, cuDNN's packed form by
      the room in its tables, a dense mask; with --model tokens/s and MFU (of 989.4 TFLOP/s) at 24 x 2048, MLP 8192, a
      vocabulary of 128,256, 16 rows of 2,048, AdamW. Last a line of JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # on a lent machine nothing is installed

import jax
import jax.numpy as jnp
import numpy as np

from ponente.ops.attention import Mask, attend

ROWS, LENGTH, HEADS, SIZE, DOCUMENTS = 8, 2048, 16, 128, 8
ROOMS = (8, 16, 32, 64, 128, 256)
PEAK_FLOPS = 989.4e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="also time a bare training step")
    flags = parser.parse_args()
    if jax.default_backend() != "gpu":
        sys.exit("found no GPU; needed one, with JAX for CUDA")
    figures = {"plain": attention(Mask())}
    for room in ROOMS:
        figures[f"room_{room}"] = attention(packed(ROWS, room))
    figures["dense"] = attention(Mask(segment_ids_BS=packed(ROWS, 8).segment_ids_BS))
    for name, milliseconds in figures.items():
        print(f"  {name:<10}{milliseconds:>8.2f} ms   plain / it {figures['plain'] / milliseconds:.2f}", flush=True)
    if flags.model:
        for is_scanned, policy in ((False, False), (True, "dots_and_attention")):
            name = "scanned" if is_scanned else "unrolled"
            tokens, mfu = training_step(16, is_scanned, policy)
            figures |= {f"{name}_tokens_per_second": tokens, f"{name}_mfu": mfu}
            print(f"  {name} ({policy or 'all kept'}): {tokens:,.0f} tokens/s, {mfu:.1%} MFU", flush=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def packed(rows: int, room: int) -> Mask:
    """Rows of eight documents of random lengths, in tables with so much room."""
    random = np.random.default_rng(0)
    starts, lengths = np.full((rows, room), -1, np.int32), np.zeros((rows, room), np.int32)
    segments = np.zeros((rows, LENGTH), np.int32)
    for row in range(rows):
        cuts = [0, *np.sort(random.choice(np.arange(1, LENGTH), DOCUMENTS - 1, replace=False)).tolist(), LENGTH]
        starts[row, :DOCUMENTS], lengths[row, :DOCUMENTS] = cuts[:-1], np.diff(cuts)
        segments[row] = np.repeat(np.arange(DOCUMENTS), np.diff(cuts))
    tables = (jnp.asarray(array) for array in (segments, starts, lengths))
    return Mask(**dict(zip(("segment_ids_BS", "document_starts_BM", "document_lengths_BM"), tables, strict=True)))


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


def training_step(rows: int, is_scanned: bool, policy: bool | str) -> tuple[float, float]:
    """Tokens a second and MFU, nominal (plain causal), of forward, backward and AdamW."""
    from ponente.models.llama import LlamaConfig
    from ponente.models.lm import Tokens
    from ponente.models.parameters import initialize
    from ponente.ops.loss import cross_entropy_sums
    from ponente.ops.rotary import DefaultRotary

    vocabulary, rope = 128_256, DefaultRotary(theta=500000.0)
    config = LlamaConfig(
        max_seq_len=LENGTH, hidden_dim=2048, intermediate_dim=8192, num_layers=24, num_heads=16, rope=rope,
        scan_layers=is_scanned, gradient_checkpointing=policy,
    )  # fmt: skip
    mask, ids = packed(rows, 32), jax.random.randint(jax.random.key(1), (rows, LENGTH + 1), 0, vocabulary)

    def loss(parameters: Any) -> Any:
        model = jax.tree.map(lambda array: array.astype(jnp.bfloat16), parameters)
        positions = jnp.broadcast_to(jnp.arange(LENGTH), (rows, LENGTH))
        hidden = model.hidden(Tokens(ids_BS=ids[:, :-1], positions_BS=positions, mask=mask))
        flat = hidden.reshape(-1, hidden.shape[-1])
        sums = cross_entropy_sums(flat, model.head_DV(), ids[:, 1:].reshape(-1), jnp.ones(flat.shape[0]))
        return sums.loss / sums.weight

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, number: Any) -> Any:
        parameters, mean, square = state
        gradients = jax.grad(loss)(parameters)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
        square = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, square, gradients)

        def moved(p: Any, m: Any, v: Any) -> Any:
            direction = m / (1 - 0.9**number) / (jnp.sqrt(v / (1 - 0.95**number)) + 1e-8)
            return p - 1e-4 * (direction + 0.1 * p)

        return jax.tree.map(moved, parameters, mean, square), mean, square

    begun = jax.jit(lambda: initialize(config.parameters(vocabulary), 0))()
    held = [(begun, *(jax.tree.map(jnp.zeros_like, begun) for _ in range(2)))]
    del begun

    def run() -> None:
        held.append(jax.block_until_ready(step(held.pop(), 5.0)))

    run()
    tokens = rows * LENGTH / median(run, 8)
    return tokens, tokens * config.flops_per_token(LENGTH, vocabulary) / PEAK_FLOPS


if __name__ == "__main__":
    main()
