"""Steps of a few layers, compiled in several ways and run in turn: what does a setting or a flag of XLA give?

Run:  python benchmarks/h200/variants.py [--shape dclm1b] [--rows 16] [--layers 6] VARIANT …      (needs a GPU)
In:   variants are words joined by commas: scanned, fp8, a policy of gradient_checkpointing (true, dots …), and
      xla_FLAG=VALUE (write + for commas in VALUE). Others are compared with the first one; `plain` is an unrolled step
      that keeps everything.
Out:  seconds of compilation, milliseconds a step (the median of rounds in which all run in turn), and the ratio. The
      batch is random, plain causal, with a vocabulary of 8,192, so that layers are most of the step.

Example: variants.py plain scanned,dots_and_attention scanned,dots_and_attention,xla_gpu_graph_min_graph_size=1
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from shapes import SHAPES, Shape

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # on a lent machine nothing is installed

VOCABULARY, ROUNDS, STEPS = 8192, 5, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", metavar="VARIANT")
    parser.add_argument("--shape", default="dclm1b", choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    shape = replace(SHAPES[options.shape], layers=options.layers, vocabulary=VOCABULARY)
    programs, seconds = {}, {}
    for name in options.variants:
        began = time.perf_counter()
        programs[name] = compiled(shape, options.rows, name)
        seconds[name] = time.perf_counter() - began
    times = run_in_turn(programs, shape, options.rows)
    first = times[options.variants[0]]
    for name, spent in times.items():
        print(f"  {spent * 1e3:8.2f} ms  {spent / first:6.4f}  compiled in {seconds[name]:5.1f} s  {name}", flush=True)
    print(json.dumps({name: {"milliseconds": spent * 1e3, "ratio": spent / first} for name, spent in times.items()}))


def step_of(shape: Shape, name: str) -> tuple[Any, Any, dict[str, str | bool]]:
    """The step of a variant, its model's config, and flags of XLA."""
    from ponente.models.llama import LlamaConfig
    from ponente.train.step import TrainStep

    words = name.split(",")
    given = dict(word.replace("+", ",").split("=", 1) for word in words if word.startswith("xla_"))
    flags = {flag: {"true": True, "false": False}.get(value, value) for flag, value in given.items()}
    rest = [word for word in words if not word.startswith("xla_") and word not in ("plain", "scanned", "fp8")]
    assert len(rest) <= 1, f"found {rest}; needed one policy of gradient_checkpointing at most"
    model = LlamaConfig(
        max_seq_len=shape.length,
        hidden_dim=shape.width,
        intermediate_dim=shape.mlp,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.heads,
        scan_layers="scanned" in words,
        gradient_checkpointing={"true": True}.get(rest[0], rest[0]) if rest else False,
    )
    settings = settings_of(model, shape, has_fp8="fp8" in words)
    return TrainStep(settings), (model, settings.optimizer), flags


def settings_of(model: Any, shape: Shape, *, has_fp8: bool = False) -> Any:
    """Of a step with AdamW, bf16 in float32."""
    import jax.numpy as jnp

    from ponente.train.optimizers.adam import AdamConfig
    from ponente.train.precision import Precision
    from ponente.train.step import StepSettings
    from ponente.train.watch import WatchConfig

    adam = AdamConfig(learning_rate=6e-4, weight_decay=0.1, max_grad_norm=1.0)
    return StepSettings(
        optimizer=adam.build(model.parameters(shape.vocabulary), 1000),
        learning_rates=adam.learning_rates(1000),
        precision=Precision(parameters=jnp.float32, compute=jnp.bfloat16),
        has_fp8=has_fp8,
        seed=0,
        vocab_size=shape.vocabulary,
        blocks_documents=False,
        watch=WatchConfig(),
    )


def compiled(shape: Shape, rows: int, name: str) -> Any:
    """The program, from a state's arrays to the next one's and the loss."""
    import jax

    step, (model, optimizer), flags = step_of(shape, name)
    state = jax.eval_shape(lambda: first_state(model, optimizer, shape))
    program = step.lower(state, batch_of(shape, rows)).compile(compiler_options=flags)
    structure = jax.tree.structure(state)  # it holds the config, which differs among variants

    def run(arrays: list[Any], batch: Any) -> tuple[list[Any], Any]:
        following, metrics = program(jax.tree.unflatten(structure, arrays), batch)
        return jax.tree.leaves(following), metrics.loss

    return run


def first_state(model: Any, optimizer: Any, shape: Shape) -> Any:
    from ponente.models.parameters import initialize
    from ponente.train.state import state_of

    return state_of(initialize(model.parameters(shape.vocabulary), seed=0), optimizer, is_averaged=False)


def batch_of(shape: Shape, rows: int) -> Any:
    import jax
    import numpy as np

    from ponente.batches.batch import Batch

    ids = np.random.default_rng(0).integers(0, shape.vocabulary, (rows, shape.length + 1)).astype(np.int32)
    places = np.tile(np.arange(shape.length, dtype=np.int32), (rows, 1))
    none = np.zeros((rows, 0), np.int32)
    weights = np.ones((rows, shape.length), np.float32)
    return jax.device_put(Batch(ids[:, :-1], ids[:, 1:], weights, np.zeros_like(places), places, none, none))


def run_in_turn(programs: dict[str, Any], shape: Shape, rows: int) -> dict[str, float]:
    """Seconds a step of each: the median of the rounds."""
    import jax

    _, (model, optimizer), _ = step_of(shape, "plain")
    arrays = jax.tree.leaves(jax.jit(lambda: first_state(model, optimizer, shape))())
    batch = batch_of(shape, rows)
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            arrays, loss = program(arrays, batch)  # not timed: the last program's memory is freed
            jax.block_until_ready(loss)
            began = time.perf_counter()
            for _ in range(STEPS):
                arrays, loss = program(arrays, batch)
            jax.block_until_ready(loss)
            times[name].append((time.perf_counter() - began) / STEPS)
    return {name: sorted(spent)[len(spent) // 2] for name, spent in times.items()}


if __name__ == "__main__":
    main()
