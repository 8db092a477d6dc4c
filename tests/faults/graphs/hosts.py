"""A model trained by two processes, one on each of two hosts of a cluster."""

import os
from dataclasses import dataclass

import numpy as np
import pyarrow
import pyarrow.parquet

from ponente.cluster import CpuOnly
from ponente.executor import ExecutorStep, executor_main, this_output_path
from ponente.experiment.training import TrainStepConfig, train_step
from ponente.models.llama import LlamaConfig
from ponente.store.sources import UrlSourceConfig
from ponente.tokens.formats.prebuilt import PrebuiltFormat
from ponente.train.checkpointer import CheckpointerConfig, KeepConfig
from ponente.train.config import TrainConfig
from ponente.train.data.config import TrainComponentConfig, TrainDataConfig
from ponente.train.optimizers import AdamConfig
from ponente.train.trainer import TrainerConfig

STEPS = 20


@dataclass(frozen=True, kw_only=True)
class IdsConfig:
    output_path: str = this_output_path("ids.parquet")


def write_ids(config: IdsConfig) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 128, random.integers(5, 90)).astype(np.int32) for _ in range(300)]
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": documents}), config.output_path)


ids = ExecutorStep(name="hosts/ids", fn=write_ids, config=IdsConfig())
source = UrlSourceConfig(train_urls=(ids / "ids.parquet",))
model = ExecutorStep(
    name="hosts/model",
    fn=train_step,
    config=TrainStepConfig(
        train=TrainConfig(
            data=TrainDataConfig(
                tokenizer="passthrough",
                vocab_size=128,
                cache_dir=os.environ.get("PONENTE_FAULT_TRACE", "cache") + "/cache",
                components={"ids": TrainComponentConfig(source=source, format=PrebuiltFormat(), pack="concat")},
            ),
            model=LlamaConfig(max_seq_len=32, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=4),
            optimizer=AdamConfig(learning_rate=1e-2, warmup=2),
            trainer=TrainerConfig(
                num_train_steps=STEPS,
                train_batch_size=16,
                checkpointer=CheckpointerConfig(keep=(KeepConfig(every=5),)),
            ),
        ),
    ),
    resources=CpuOnly(num_cpus=1, host_count=2),
)

if __name__ == "__main__":
    executor_main(steps=[model], description=__doc__)
