"""A training run that is killed and started again gives, bit for bit, what one that was left alone gives.

The runs have all that could go wrong at once: accumulation, a mixture, bfloat16, packing, dropout and an average of
weights; kills come at random steps, some while a checkpoint is being written.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import note, seeds, wait_until
from quick import QUICK

from ponente.store.checkpoint import load, newest, read_metadata, whole_checkpoints
from ponente.store.metrics import read_metrics
from ponente.store.paths import PRIVATE_MARK
from ponente.train.run_record import read_run_record

STEPS = 100
KILLS = 6


@dataclass
class Trained:
    """Where runs of one config lie."""

    folder: Path
    config: Path

    def command(self, run: str, *flags: str) -> list[str]:
        places = ("--trainer.log_dir", str(self.folder / "logs"), "--trainer.id", run)
        return [sys.executable, "-m", "ponente", "train", "--config_path", str(self.config), *places, *flags]

    def start(self, run: str, *flags: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
        with (self.folder / f"{run}.out").open("ab") as output:
            return subprocess.Popen(self.command(run, *flags), stdout=output, stderr=output, env=environment)

    def finish(self, run: str, *flags: str) -> int:
        return self.start(run, *flags).wait(timeout=300)

    def said(self, run: str) -> str:
        return (self.folder / f"{run}.out").read_text()

    def checkpoints(self, run: str) -> Path:
        return self.folder / "checkpoints" / run

    def losses(self, run: str) -> dict[int, float]:
        return self.metric(run, "train/loss")

    def metric(self, run: str, name: str) -> dict[int, Any]:
        rows = list(read_metrics(str(self.folder / "logs" / run)))
        assert len({row.step for row in rows}) == len(rows)
        return {row.step: row.metrics[name] for row in rows if name in row.metrics}

    def arrays(self, run: str, step: int = STEPS) -> dict[str, Any]:
        path = str(self.checkpoints(run) / f"step-{step}")
        shapes = read_metadata(path).arrays
        import jax

        targets = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in shapes.items()}
        return {name: np.asarray(array) for name, array in load(path, targets).items()}


@pytest.fixture(scope="module")
def trained(tiny_texts: list[str], tiny_tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A config, its caches, and the run `whole`, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("trained")
    for name, texts in {"first": tiny_texts[:300], "second": tiny_texts[300:], "held": tiny_texts[:40]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = folder / "config.yaml"
    config.write_text(f"""
data:
  tokenizer: {tiny_tokenizer}
  cache_dir: {folder / "cache"}
  components:
    first:
      source: {{train_urls: ["{folder}/first.jsonl"], validation_urls: ["{folder}/held.jsonl"]}}
      pack: true
    second: {{source: {{train_urls: ["{folder}/second.jsonl"]}}}}
  train_weights: {{first: 0.7, second: 0.3}}
model: {{type: gpt2, max_seq_len: 32, hidden_dim: 32, num_layers: 2, num_heads: 2, embed_pdrop: 0.1}}
optimizer: {{learning_rate: 3e-3, warmup: 5}}
trainer:
  num_train_steps: {STEPS}
  train_batch_size: 8
  per_device_parallelism: 4
  steps_per_eval: 20
  mp: p=f32,c=bfloat16
  model_averaging: {{type: ema, beta: 0.9}}
  jax_compilation_cache_dir: {folder / "compiled"}
  tracker: {{type: local, publish_seconds: 0.05}}
  checkpointer: {{base_path: {folder / "checkpoints"}, save_interval: 0.02s, keep: [{{every: 10}}]}}
""")
    trained = Trained(folder, config)
    assert trained.finish("whole") == 0, trained.said("whole")
    assert sorted(trained.losses("whole")) == list(range(STEPS))
    return trained


def assert_same(trained: Trained, run: str) -> None:
    assert trained.losses(run) == trained.losses("whole")
    whole, other = trained.arrays("whole"), trained.arrays(run)
    assert whole.keys() == other.keys()
    assert {name.partition(".")[0] for name in whole} == {"step", "model", "optimizer", "average"}
    for name, array in whole.items():
        assert array.tobytes() == other[name].tobytes(), name
    assert trained.metric(run, "eval/loss") == trained.metric("whole", "eval/loss")
    assert sorted(trained.metric(run, "eval/loss")) == [20, 40, 60, 80, 100]


def kill_moments(seed: int) -> Iterator[tuple[int, bool]]:
    """After which step, and whether inside a save."""
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(5, STEPS - 5), KILLS))
    for number, step in enumerate(steps):
        yield step, number % 2 == 0


@pytest.mark.parametrize("seed", seeds(1, soak=4))
def test_a_run_that_is_killed_again_and_again_equals_one_that_was_not(trained: Trained, seed: int) -> None:
    run, inside = f"killed-{seed}", 0
    for step, in_save in kill_moments(seed):
        process = trained.start(run)
        try:
            where = _kill_after(trained, run, process, step, in_save=in_save)
        finally:
            process.kill()
            process.wait()
        inside += where == "inside a save"
        note("training killed", phase=where)
        path = newest(str(trained.checkpoints(run)))
        if path is not None:
            assert read_metadata(path).step < STEPS
    assert trained.finish(run) == 0, trained.said(run)
    assert inside >= 1
    assert_same(trained, run)
    record = read_run_record(str(trained.folder / "logs" / run))
    assert record is not None
    assert len(record.lives) >= 3


def _kill_after(trained: Trained, run: str, process: "subprocess.Popen[bytes]", step: int, *, in_save: bool) -> str:
    """Kills the process once it is past a step, at any moment or when a checkpoint is being written."""
    folder = trained.checkpoints(run)

    def is_past() -> bool:
        assert process.poll() in (None, 0), trained.said(run)
        steps = [int(name[5:]) for name in _names(folder) if re.fullmatch(r"step-\d+", name)]
        return process.poll() is not None or max(steps, default=0) >= step

    def is_saving() -> bool:
        return process.poll() is not None or any(name.startswith(PRIVATE_MARK) for name in _names(folder))

    _spin(is_past)
    if in_save:
        _spin(is_saving)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return "inside a save" if any(name.startswith(PRIVATE_MARK) for name in _names(folder)) else "between saves"


def _spin(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def test_a_run_that_is_asked_to_stop_saves_exits_75_and_goes_on_exactly(trained: Trained) -> None:
    run, quiet = "stopped", ("--trainer.checkpointer.save_interval", "1h", "--trainer.checkpointer.keep", "[]")
    process = trained.start(run, *quiet)
    wait_until(lambda: process.poll() is not None or "step 1/" in trained.said(run), "a step is made")
    process.terminate()
    assert process.wait(timeout=120) == 75, trained.said(run)
    assert "the same command goes on" in trained.said(run)
    (step,) = whole_checkpoints(str(trained.checkpoints(run)))
    assert 0 < step < STEPS
    assert trained.finish(run, *quiet) == 0, trained.said(run)
    assert_same(trained, run)


def test_two_processes_of_one_run_do_not_write_beside_each_other(trained: Trained) -> None:
    run = "twice"
    first = trained.start(run)
    wait_until(lambda: first.poll() is not None or (trained.checkpoints(run) / ".lock").exists(), "a run has begun")
    second = trained.start(run)
    codes = {first.wait(timeout=300), second.wait(timeout=300)}
    assert codes <= {0, 2}
    assert 0 in codes
    assert_same(trained, run)
