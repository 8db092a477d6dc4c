"""Training runs on a GPU: losses fall, a killed run goes on bit for bit, and fast kernels train like plain ones."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ponente.store.metrics import read_metrics

CONFIG = """
data:
  tokenizer: passthrough
  vocab_size: 512
  cache_dir: {folder}/cache
  components: {{ids: {{source: {{train_urls: ["{folder}/ids.parquet"]}}, format: {{type: prebuilt}}, pack: concat}}}}
model: {{type: llama, max_seq_len: 256, hidden_dim: 256, intermediate_dim: 768, num_layers: 4, num_heads: 4,
  num_kv_heads: 2}}
optimizer: {{learning_rate: 1e-3, warmup: 5, max_grad_norm: 1.0}}
trainer: {{mp: "p=f32,c=bfloat16", train_batch_size: 16, num_train_steps: 40, log_dir: {folder}/logs,
  require_accelerator: true, checkpointer: {{base_path: {folder}/checkpoints, keep: [{{every: 20}}]}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config, and documents in which each id follows from the one before it, most of the time."""
    random = np.random.default_rng(0)
    documents = []
    for _ in range(600):
        ids = random.integers(0, 512, int(np.clip(random.lognormal(5, 1), 8, 2000)))
        for place in range(1, len(ids)):
            if random.random() < 0.9:
                ids[place] = (3 * ids[place - 1] + 1) % 512
        documents.append(ids.astype(np.int32))
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": documents}), tmp_path / "ids.parquet")
    (tmp_path / "config.yaml").write_text(CONFIG.format(folder=tmp_path))
    return tmp_path


def start(folder: Path, run: str, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ponente", "train", "--config_path", str(folder / "config.yaml")]
    log = (folder / f"{run}.log").open("ab")
    return subprocess.Popen([*command, "--trainer.id", run, *flags], stderr=log, env=dict(os.environ))


def train(folder: Path, run: str, *flags: str) -> str:
    running = start(folder, run, *flags)
    assert running.wait(timeout=240) == 0, (folder / f"{run}.log").read_text()[-3000:]
    return (folder / f"{run}.log").read_text()


def losses(folder: Path, run: str) -> list[float]:
    return [
        one.metrics["train/loss"] for one in read_metrics(str(folder / "logs" / run)) if "train/loss" in one.metrics
    ]


def test_a_short_training_lowers_the_loss_and_fast_kernels_and_8_bits_train_like_plain_ones(folder: Path) -> None:
    unrolled = ("--model.scan_layers", "false", "--model.gradient_checkpointing", "dots_and_attention")
    log = train(folder, "fast", "--trainer.num_train_steps", "150", "--trainer.per_device_parallelism", "8", *unrolled)
    assert "attention: cudnn_packed on gpu, documents apart" in log
    log = train(folder, "plain", "--trainer.num_train_steps", "150", "--model.attn_backend", "xla")
    assert "attention: xla on gpu" in log
    fast, plain = (np.array(losses(folder, run)) for run in ("fast", "plain"))
    assert fast[0] == pytest.approx(np.log(512), abs=0.3)
    assert fast[-10:].mean() < 0.75 * fast[0]
    assert np.abs(fast - plain).max() < 0.02
    train(folder, "fp8", "--trainer.num_train_steps", "150", "--trainer.quantization.fp8", "true", *unrolled)
    fp8 = np.array(losses(folder, "fp8"))
    assert (fp8 != fast).any()
    assert abs(fp8[-10:].mean() - fast[-10:].mean()) < 0.05


@pytest.mark.parametrize(
    "model",
    [
        ("--model.scan_layers", "true"),
        ("--model.scan_layers", "false", "--model.gradient_checkpointing", "false"),
        ("--model.scan_layers", "false", "--model.gradient_checkpointing", "true"),
    ],
    ids=["scanned", "unrolled", "unrolled_recomputed"],
)
def test_a_killed_deterministic_run_ends_bit_for_bit_as_one_that_was_not(folder: Path, model: tuple[str, ...]) -> None:
    flags = ("--trainer.deterministic", "true", *model)
    train(folder, "whole", *flags)
    running = start(folder, "killed", *flags)
    until = time.monotonic() + 200
    while not list((folder / "checkpoints" / "killed").glob("step-20*")) and running.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    train(folder, "killed", *flags)
    assert "going on at step 20" in (folder / "killed.log").read_text()
    whole, killed = losses(folder, "whole"), losses(folder, "killed")
    assert len(whole) == len(killed) == 40
    assert whole == killed
