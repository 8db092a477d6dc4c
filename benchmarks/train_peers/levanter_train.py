"""Levanter's train_lm on the benchmark's Llama and rows, on the CPU, in an environment of its own.

Run:  ~/.cache/ponente-bench/levanter/bin/python benchmarks/train_peers/levanter_train.py ROWS.npy TOKENIZER [--help]
In:   token ids [rows, 257] (rows.py), of which the first 256 of each row are used, in their order; the folder of their
      tokenizer, which train_lm wants to have. The environment is that of tokenization_peers/contestants.py.
Out:  last a line of JSON: tokens_per_second (of the steps after warm-up, by the wall clock), tokens_per_cpu_second (by
      the CPU time of all threads), seconds (of each step but the first), losses (from the third step, the first that
      train_lm logs), levanter (its version).
"""

import argparse
import importlib.metadata
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")  # read on import

import numpy as np
from haliax import Axis
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text import LmDataConfig
from levanter.data.text.datasets import CausalLmDataset, DirectDatasetComponent
from levanter.main import train_lm
from levanter.models.llama import LlamaConfig
from levanter.optim import AdamConfig
from levanter.tracker import NoopTracker, TrackerConfig
from levanter.trainer import TrainerConfig

LENGTH = 256
SIZES = {"hidden_dim": 256, "intermediate_dim": 768, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4}
STEP_IS_DONE = "throughput/loading_time"  # the last that train_lm logs of a step


class Finished(Exception):
    """All steps are done. What train_lm would do now, write a checkpoint, is not wanted."""


class Recorder(NoopTracker):
    """Keeps the losses, and when each step was done."""

    name = "recorder"

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self.times: list[tuple[float, float]] = []  # wall, CPU

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        if "train/loss" in metrics:
            self.losses.append(float(metrics["train/loss"]))
        if STEP_IS_DONE in metrics:
            self.times.append((time.perf_counter(), time.process_time()))
            if len(self.times) == self.steps:
                raise Finished


@TrackerConfig.register_subclass("recorder")
@dataclass(frozen=True)
class RecorderConfig(TrackerConfig):
    """For train_lm, which makes its trackers of configs."""

    recorder: Recorder

    def init(self, run_id: str | None) -> Recorder:
        return self.recorder


def main() -> None:
    flags = parse_flags()
    recorder = Recorder(flags.warm_up + flags.steps)
    with tempfile.TemporaryDirectory(prefix="ponente-bench-") as work, suppress(Finished):
        train_lm.main(config_of(flags, recorder, Path(work)))
    steps = [
        (wall - wall_before, cpu - cpu_before) for (wall_before, cpu_before), (wall, cpu) in pairwise(recorder.times)
    ]
    timed = steps[-flags.steps :]
    tokens = flags.steps * flags.batch * LENGTH
    figures = {
        "tokens_per_second": tokens / sum(wall for wall, _ in timed),
        "tokens_per_cpu_second": tokens / sum(cpu for _, cpu in timed),
        "seconds": [round(wall, 4) for wall, _ in steps],
        "losses": recorder.losses,
        "levanter": importlib.metadata.version("marin-levanter"),
    }
    print(json.dumps(figures))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="that are timed (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=3, help="steps before them (default: %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=6e-4)
    parser.add_argument("--attn_backend", default=None, help="Levanter's own choice, unless given")
    parser.add_argument("--gradient_checkpointing", action="store_true", help="as Levanter does unless told otherwise")
    flags = parser.parse_args()
    if flags.warm_up < 1:
        parser.error("--warm_up is 1 or more: the first step compiles")
    return flags


def config_of(flags: argparse.Namespace, recorder: Recorder, work: Path) -> train_lm.TrainLmConfig:
    tokenizer = str(model_folder(flags.tokenizer, work))
    model = LlamaConfig(
        max_seq_len=LENGTH,
        **SIZES,
        gradient_checkpointing=flags.gradient_checkpointing,
        attn_backend=flags.attn_backend,
        tokenizer=tokenizer,
        reference_checkpoint=tokenizer,
    )
    trainer = TrainerConfig(
        id="benchmark",
        tracker=RecorderConfig(recorder),
        train_batch_size=flags.batch,
        num_train_steps=flags.warm_up + flags.steps,
        checkpointer=CheckpointerConfig(base_path=str(work / "checkpoints"), save_interval=timedelta(days=1)),
        log_dir=work / "logs",
        log_jaxprs=False,
        log_xla_hlo=False,
        require_accelerator=False,
    )
    optimizer = AdamConfig(
        learning_rate=flags.learning_rate, weight_decay=0.1, beta1=0.9, beta2=0.95, lr_schedule="constant", warmup=0.0
    )
    data = data_of(flags, tokenizer)
    return train_lm.TrainLmConfig(data=data, trainer=trainer, model=model, optimizer=optimizer)


def data_of(flags: argparse.Namespace, tokenizer: str) -> LmDataConfig:
    """The rows as they are; a block of the mixture is a batch, so that its shuffle stays within one."""
    rows = np.load(flags.rows)[:, :LENGTH].astype(np.int32)
    examples = CausalLmDataset(
        ListAsyncDataset([{"input_ids": row} for row in rows]),
        Axis("position", LENGTH),
        block_cross_document_attention=False,
    )
    return LmDataConfig(
        tokenizer=tokenizer,
        components={"rows": DirectDatasetComponent({"train": examples})},
        train_weights={"rows": 1.0},
        shuffle=False,
        mixture_block_size=flags.batch,
    )


def model_folder(tokenizer: Path, work: Path) -> Path:
    """The tokenizer's files, and a config.json that says which kind of model they go with."""
    folder = work / "model"
    folder.mkdir()
    for file in tokenizer.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 32_000}))
    return folder


if __name__ == "__main__":
    main()
