"""The Pile as TFRecords, and the two configs that train on it: order, rows, and what one command leaves behind."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ponente.experiment.training import train_lm
from ponente.store.checkpoint import whole_checkpoints
from ponente.store.metrics import read_metrics
from ponente.store.sources.tfrecord import masked_crc
from ponente.train.config import load_train_config
from ponente.train.data.caches import open_data
from ponente.train.data.settings import load_settings
from ponente.train.optimizers import AdamConfig

CONFIGS = Path(__file__).parents[3] / "config"
MUDD, LLAMA = CONFIGS / "mudd_medium.yaml", CONFIGS / "llama_medium.yaml"
LENGTH, IDS = 16, 64
TOLD = {"train/loss", "optim/grad_norm", "optim/learning_rate"}


def nested(*parts: bytes) -> bytes:
    """A field of bytes within fields, from the outermost key byte to the data; all shorter than 128 bytes."""
    data = parts[-1]
    for key in reversed(parts[:-1]):
        data = key + bytes([len(data)]) + data
    return data


def record(ids: list[int]) -> bytes:
    """A tf.train.Example with `input_ids`, in the frame of a TFRecord; ids below 128."""
    name, values = nested(b"\x0a", b"input_ids"), nested(b"\x12", b"\x1a", b"\x0a", bytes(ids))
    data = nested(b"\x0a", b"\x0a", name + values)
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


@pytest.fixture
def pile(tmp_path: Path) -> tuple[Path, list[list[int]]]:
    """A folder of files that are named by the step they begin with, and their rows in the order of the steps."""
    rows = np.random.default_rng(0).integers(0, IDS, (12, LENGTH + 1)).tolist()
    folder = tmp_path / "pile"
    folder.mkdir()
    for first, step in {8: 1000, 0: 0, 4: 500}.items():
        (folder / f"pile.tfrecord.b{step}").write_bytes(b"".join(map(record, rows[first : first + 4])))
    return folder, rows


def flags(folder: Path, tmp_path: Path) -> list[str]:
    """The command of the configs' heads, and what makes it small."""
    return [
        *("--trainer.log_dir", str(tmp_path / "RUN"), "--data.train_urls", str(folder)),
        *("--data.tokenizer", "passthrough", "--data.vocab_size", str(IDS)),
        *("--data.cache_dir", str(tmp_path / "cache"), "--model.max_seq_len", str(LENGTH)),
        *("--trainer.train_batch_size", "4", "--trainer.num_train_steps", "3"),
    ]


def test_the_pair_differs_in_the_model_alone() -> None:
    pair: list[dict[str, Any]] = [yaml.safe_load(file.read_text()) for file in (MUDD, LLAMA)]
    assert [one["model"].pop("preset") for one in pair] == ["MUDDLlama2Medium", "Llama2Medium"]
    assert [one["trainer"].pop("id") for one in pair] == ["mudd_medium", "llama_medium"]
    assert pair[0] == pair[1]


def test_the_pair_is_trained_as_the_paper_s_models_were() -> None:
    config = load_train_config(str(MUDD), ["--data.train_urls", "pile"]).config
    optimizer, trainer = config.optimizer, config.trainer
    assert isinstance(optimizer, AdamConfig)
    assert (optimizer.learning_rate, optimizer.min_lr_ratio) == (3e-4, 0.1)
    assert (optimizer.lr_schedule, optimizer.warmup) == ("cosine", 0.01)
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay, optimizer.max_grad_norm) == (0.9, 0.95, 0.1, 1)
    assert (trainer.num_train_steps, trainer.train_batch_size, config.model.max_seq_len) == (13_500, 256, 2048)
    assert (config.data.vocab_size, config.data.shuffle) == (50_432, False)


def test_a_batch_has_the_records_of_its_step_and_predicts_their_last_id(
    pile: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, rows = pile
    settings = load_settings(str(MUDD), flags(folder, tmp_path))
    stream = settings.training_data(open_data(settings.data)).stream
    for step in range(3):
        batch, expected = stream.batch(step), np.array(rows[4 * step : 4 * step + 4])
        assert np.array_equal(batch.tokens_BS, expected[:, :-1])
        assert np.array_equal(batch.targets_BS, expected[:, 1:])
        assert (batch.loss_weights_BS == 1).all()


def test_one_command_leaves_checkpoints_metrics_and_a_board_in_its_folder_and_is_done_once(
    pile: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    small = [
        *("--model.hidden_dim", "16", "--model.intermediate_dim", "32", "--model.num_layers", "1"),
        *("--model.num_heads", "2", "--model.num_kv_heads", "2", "--model.dynamic_dense_hidden_expand", "none"),
    ]
    config = load_train_config(str(MUDD), [*flags(pile[0], tmp_path), *small]).config
    assert [train_lm(config).loss is None for _ in range(2)] == [False, True]  # the second time nothing is left to do
    run = tmp_path / "RUN"
    assert list(whole_checkpoints(str(run / "checkpoints" / "mudd_medium"))) == [3]
    rows = read_metrics(str(run / "mudd_medium"))
    assert [row.step for row in rows if row.metrics.keys() >= TOLD] == [0, 1, 2]
    board = EventAccumulator(str(run / "tensorboard" / "mudd_medium"))
    board.Reload()
    assert set(board.Tags()["scalars"]) >= TOLD
    assert [event.step for event in board.Scalars("train/loss")] == [0, 1, 2]
