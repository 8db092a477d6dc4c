"""What connections over depth cost: a MUDDFormer of the paper's 1.4B shape beside its baseline, training and decoding.

Run:  python benchmarks/h200/connections.py [--variants baseline default …] [--rows 16] [--batches 1 16] [--kernels 0]
Out:  of each variant, milliseconds a step and a decoded token (medians of rounds in which all run in turn), the memory
      of a step by the compiler's account, and these against the first variant; last a line of JSON. Tokens are random,
      and nothing is recomputed (`gradient_checkpointing: false`). With --kernels, also those that take longest.
Cost: needs a GPU; at defaults, about five minutes of one H200, half of them compilation.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shapes import Shape
from traced import traced
from variants import batch_of, first_state, settings_of

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")  # the states of all variants are there at once
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # on a lent machine nothing is installed

VARIANTS: dict[str, dict[str, object]] = {
    "baseline": {"dense_conn": False},
    "default": {"mudd_prenorm": True, "mudd_postnorm": True},  # from 20 layers on
    "plain": {"mudd_prenorm": False, "mudd_postnorm": False},
    "single": {"dynamic_dense_type": "l"},
    "static": {"dynamic_dense_type": "l", "mudd_dynamic": False},
}
VOCABULARY = 50_432
ROUNDS, STEPS = 5, 4  # of training
DECODED_ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=["baseline", "default", "plain"])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16], help="prompts that are decoded at once")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each")
    parser.add_argument("--new", type=int, default=128, help="tokens that are decoded")
    parser.add_argument("--kernels", type=int, default=0, help="so many are told of each step and token")
    options = parser.parse_args()
    shape = Shape(
        layers=options.layers,
        width=options.width,
        mlp=options.width * 11 // 4,
        heads=max(1, options.width // 128),
        vocabulary=options.vocabulary,
        length=options.length,
    )
    figures: dict[str, dict[str, float]] = {name: {} for name in options.variants}
    if options.rows:
        train(figures, shape, options.rows, options.kernels)
        tell(figures)
    for batch in options.batches:
        decode(figures, shape, batch, options.prompt, options.new, options.kernels)
        tell(figures)
    print(json.dumps({name: {key: round(value, 4) for key, value in row.items()} for name, row in figures.items()}))


def tell(figures: dict[str, dict[str, float]]) -> None:
    """Prints the figures that are new, with their ratios to the first variant's, which are added to them."""
    first = next(iter(figures.values()))
    keys = [key for key in first if not key.endswith("_ratio") and f"{key}_ratio" not in first]
    for name, row in figures.items():
        row |= {f"{key}_ratio": _ratio(key, row[key], first[key]) for key in keys}
        print(f"  {name:<10}" + "; ".join(_told(key, row) for key in keys), flush=True)


def _ratio(key: str, value: float, first: float) -> float:
    """Of memory, how much more; of times, how much of the speed."""
    return value / first if key.endswith("gib") else first / value


def _told(key: str, row: dict[str, float]) -> str:
    return f"{key.replace('_', ' ')} {row[key]:.3f} ({row[f'{key}_ratio']:.3f})"


def model_of(name: str, shape: Shape) -> Any:
    from ponente.models.mudd import MuddConfig

    keys: dict[str, Any] = VARIANTS[name]
    return MuddConfig(
        max_seq_len=shape.length,
        hidden_dim=shape.width,
        intermediate_dim=shape.mlp,
        num_layers=shape.layers,
        num_heads=shape.heads,
        gradient_checkpointing=False,
        **keys,
    )


def train(figures: dict[str, dict[str, float]], shape: Shape, rows: int, told: int = 0) -> None:
    """Memory and milliseconds of a step.

    Args:
        told: how many kernels are printed.
    """
    import jax

    from ponente.train.fitting import GIB, Need
    from ponente.train.step import TrainStep

    batch, programs, states = batch_of(shape, rows), {}, {}
    for name in figures:
        model = model_of(name, shape)
        settings = settings_of(model, shape)
        state = jax.jit(partial(first_state, model, settings.optimizer, shape))()
        began = time.perf_counter()
        programs[name] = TrainStep(settings).lower(state, batch).compile()
        figures[name]["step_gib"] = Need.of(programs[name]).total / GIB
        print(f"  {name}: compiled in {time.perf_counter() - began:.0f} s", flush=True)
        states[name] = state

    def run(name: str) -> Callable[[], Any]:
        def steps() -> Any:
            for _ in range(STEPS):
                states[name], metrics = programs[name](states[name], batch)
            return metrics.loss

        return steps

    for name, seconds in in_turn({name: run(name) for name in figures}, ROUNDS).items():
        figures[name]["step_ms"] = 1e3 * seconds / STEPS
        tell_kernels(f"a step of {name}", run(name), STEPS, told)


def decode(
    figures: dict[str, dict[str, float]], shape: Shape, batch: int, prompt: int, new: int, told: int = 0
) -> None:
    """Milliseconds of a token, with prompts that were read before."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from ponente.generate.decode import Rule, prefill
    from ponente.generate.decode import decode as decoded
    from ponente.generate.layers import ready
    from ponente.generate.sampling import SamplingConfig
    from ponente.models.parameters import initialize

    ids = np.random.default_rng(0).integers(0, shape.vocabulary, (batch, prompt)).astype(np.int32)
    lengths = np.full(batch, prompt, np.int32)
    rule = Rule.of(SamplingConfig(max_new_tokens=new), range(batch), shape.vocabulary)

    def run(name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        parameters = model_of(name, shape).parameters(shape.vocabulary)
        model = ready(jax.jit(lambda: initialize(parameters, seed=0))(), jnp.bfloat16)
        read = partial(
            prefill, model, ids, lengths, rule, cache_length=prompt + new, cache_dtype=np.dtype(jnp.bfloat16)
        )
        return (
            lambda: read(room=new),
            lambda begun: decoded(model, *begun, rule, np.int32(new))[1].new_BN,
        )

    runs = {name: run(name) for name in figures}
    for name, seconds in in_turn(runs, DECODED_ROUNDS).items():
        figures[name][f"token_ms_{batch}"] = 1e3 * seconds / (new - 1)  # the first comes of the prompt
        begin, go = runs[name]
        given = jax.block_until_ready(begin()) if told else None
        tell_kernels(f"a token of {name} with {batch} rows", partial(go, given), new - 1, told)


def tell_kernels(what: str, run: Callable[[], Any], times: int, told: int) -> None:
    """Prints the kernels that take longest in a run of so many steps or tokens."""
    if not told:
        return
    found = traced(run)
    every = [spent for each in found.values() for spent in each]
    print(f"  {what}: {sum(every) / times:.3f} ms in {len(every) / times:.0f} kernels", flush=True)
    for name, each in list(found.items())[:told]:
        print(f"    {1e3 * sum(each) / times:10.1f} us in {len(each) / times:6.1f}  {name}", flush=True)


def in_turn(contestants: dict[str, Any], rounds: int) -> dict[str, float]:
    """The median seconds of each; of a pair, the first is not timed and makes what the second takes."""
    import jax

    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):  # in the first all is compiled
        for name, one in contestants.items():
            begin, go = one if isinstance(one, tuple) else (lambda: None, lambda _, one=one: one())
            given = jax.block_until_ready(begin())
            began = time.perf_counter()
            jax.block_until_ready(go(given))
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: sorted(spent)[len(spent) // 2] for name, spent in times.items()}


if __name__ == "__main__":
    main()
