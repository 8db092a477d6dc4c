"""Whole runs on tiny data: each key of the trainer and of the top level, seen in what a run leaves behind."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from ponente.config.errors import RefusedError, UserError
from ponente.evaluate.command import evaluate_saved
from ponente.experiment.training import train_lm
from ponente.generate.command import sample
from ponente.generate.sampling import SamplingConfig
from ponente.models.saved import load_saved_model
from ponente.store.checkpoint import CheckpointError, read_metadata, whole_checkpoints
from ponente.store.metrics import read_metrics
from ponente.store.token_cache.cache import open_cache
from ponente.train.beginning import begin
from ponente.train.config import TrainConfig, load_train_config
from ponente.train.export_command import export_checkpoint
from ponente.train.finiteness import NotFiniteError
from ponente.train.fitting import Need, largest_that_fits
from ponente.train.run import TrainResult
from ponente.train.run_record import read_run_record
from ponente.train.setup import set_up
from ponente.train.signals import Preempted

PAGE = Path(__file__).parents[3] / "docs" / "training.md"


@dataclass
class Site:
    """A folder with data, caches and a config, where runs are made."""

    folder: Path
    config: Path

    def load(self, *flags: str, run: str = "run") -> TrainConfig:
        places = (
            *("--trainer.id", run, "--trainer.log_dir", str(self.folder / "logs")),
            *("--trainer.checkpointer.base_path", str(self.folder / "checkpoints")),
        )
        return load_train_config(str(self.config), [*places, *flags]).config

    def train(self, *flags: str, run: str = "run") -> TrainResult:
        return train_lm(self.load(*flags, run=run))

    def metrics(self, run: str = "run") -> dict[int, dict[str, Any]]:
        return {row.step: dict(row.metrics) for row in read_metrics(str(self.folder / "logs" / run))}

    def losses(self, run: str = "run") -> list[float]:
        return [row["train/loss"] for _, row in sorted(self.metrics(run).items()) if "train/loss" in row]

    def steps(self, run: str = "run") -> list[int]:
        return list(whole_checkpoints(str(self.folder / "checkpoints" / run)))

    def weights(self, run: str = "run") -> dict[str, np.ndarray[Any, Any]]:
        model = load_saved_model(str(self.folder / "checkpoints" / run)).weights
        return {str(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]}


@pytest.fixture(scope="session")
def caches(tiny_texts: list[str], tiny_tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training_data")
    for name, texts in {"train": tiny_texts[:300], "other": tiny_texts[300:400], "held": tiny_texts[400:440]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def site(caches: Path, tiny_tokenizer: str, tmp_path: Path) -> Site:
    config = tmp_path / "config.yaml"
    config.write_text(f"""
data:
  tokenizer: {tiny_tokenizer}
  cache_dir: {caches / "cache"}
  components:
    plays: {{source: {{train_urls: ["{caches}/train.jsonl"], validation_urls: ["{caches}/held.jsonl"]}}, tags: [verse]}}
model: {{type: llama, max_seq_len: 16, hidden_dim: 16, intermediate_dim: 32, num_layers: 1, num_heads: 2}}
optimizer: {{learning_rate: 1e-2, warmup: 0}}
trainer: {{num_train_steps: 4, train_batch_size: 4, watch: {{interval: 0}}}}
""")
    return Site(tmp_path, config)


def test_a_run_leaves_metrics_a_checkpoint_a_record_and_a_log(site: Site) -> None:
    result = site.train("--trainer.num_train_steps", "6")
    assert result.steps == 6
    assert result.loss == site.losses()[-1]
    assert result.checkpoint.endswith("checkpoints/run/step-6")
    assert site.steps() == [6]
    rows = site.metrics()
    assert sorted(rows) == [0, 1, 2, 3, 4, 5, 6]
    assert {"train/loss", "optim/learning_rate", "optim/grad_norm", "throughput/tokens_per_second"} <= rows[0].keys()
    assert {"throughput/loading_time", "throughput/hook_time", "throughput/goodput"} <= rows[0].keys()
    assert {"eval/loss", "eval/bpb", "eval/perplexity", "eval/macro_loss", "eval/verse/loss"} <= rows[6].keys()
    assert rows[6]["eval/plays/loss"] == rows[6]["eval/verse/loss"] == rows[6]["eval/loss"]
    record = read_run_record(result.folder)
    assert record is not None
    assert record.config["trainer"]["num_train_steps"] == 6
    assert record.lives[0].extra["orders"]["plays"]
    assert "6 steps" in (site.folder / "logs" / "run.log").read_text()


def test_losses_fall(site: Site) -> None:
    site.train("--trainer.num_train_steps", "40")
    assert np.mean(site.losses()[-5:]) < np.mean(site.losses()[:5]) - 0.5


@pytest.mark.parametrize("key", ["trainer.seed", "data_seed"])
def test_seeds_change_what_is_trained(site: Site, key: str) -> None:
    site.train(run="one")
    site.train(f"--{key}", "1", run="two")
    site.train(f"--{key}", "1", run="three")
    assert site.losses("two") == site.losses("three")
    assert site.losses("one") != site.losses("two")
    first = [site.losses(run)[0] for run in ("one", "two")]
    assert first[0] != first[1]


def test_z_loss_is_part_of_the_loss_but_not_of_cross_entropy(site: Site) -> None:
    site.train(run="plain")
    site.train("--z_loss_weight", "0.1", run="weighted")
    assert site.losses("weighted")[0] > site.losses("plain")[0] + 1
    assert site.metrics("weighted")[0]["train/cross_entropy"] == pytest.approx(site.losses("plain")[0], rel=1e-5)


def test_mp_bfloat16_differs_a_little(site: Site) -> None:
    site.train(run="exact")
    site.train("--trainer.mp", "p=f32,c=bfloat16", run="mixed")
    difference = abs(site.losses("mixed")[-1] - site.losses("exact")[-1])
    assert 0 < difference < 0.05


def test_products_in_8_bits_differ_a_little(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.train(run="exact")
    with caplog.at_level("WARNING"):
        site.train("--trainer.quantization.fp8", "true", run="fp8")
    assert "products in 8 bits are imitated on this device" in caplog.text
    difference = abs(site.losses("fp8")[-1] - site.losses("exact")[-1])
    assert 0 < difference < 0.05


MESH = ("--trainer.train_batch_size", "8", "--model.num_heads", "4", "--model.num_kv_heads", "2")


def test_a_run_on_a_mesh_is_that_of_one_device(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    flags = (*MESH, "--log_entropy", "true", "--hf_save_path", str(site.folder / "exports"))
    one = site.train(*flags, run="one")
    with caplog.at_level("INFO"):
        several = site.train(*flags, "--trainer.mesh.axes", "{data: 4, model: 2}", run="several")
    assert "(data 4, model 2)" in caplog.text
    np.testing.assert_allclose(site.losses("several"), site.losses("one"), rtol=1e-5)
    for name in ("eval/loss", "eval/entropy", "eval/bpb"):
        assert several.metrics[name] == pytest.approx(one.metrics[name], rel=1e-5)
    assert one.exported is not None and several.exported is not None
    expected, found = (load_file(Path(place) / "model.safetensors") for place in (one.exported, several.exported))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    config = site.load(*MESH, "--trainer.mesh.axes", "{data: 8}", "--initialize_from_hf", several.exported)
    begun = begin(set_up(config), None)
    assert begun.model.embed_VD.sharding.num_devices == 8
    saved = load_saved_model(several.checkpoint).weights
    np.testing.assert_array_equal(begun.model.blocks.mlp.w_up_DF, saved.blocks.mlp.w_up_DF)
    place = ("--checkpoint_path", several.checkpoint)
    for mesh in ((), ("--trainer.mesh.axes", "{data: 2, model: 2}")):  # by default not that of the run
        found = evaluate_saved(None, [*mesh, *place])["eval/loss"]
        assert found == pytest.approx(several.metrics["eval/loss"], rel=1e-5)


def test_a_checkpoint_of_one_mesh_is_loaded_on_any_other_bit_for_bit(site: Site) -> None:
    meshes = {"eight": "{data: 4, model: 2}", "four": "{data: 4}", "two": "{replica: 2, data: 1}", "one": "{data: 1}"}
    for name, axes in meshes.items():
        site.train(*MESH, "--trainer.num_train_steps", "2", "--trainer.mesh.axes", axes, run=name)
    saved = {name: load_saved_model(str(site.folder / "checkpoints" / name)).weights for name in meshes}
    for name, weights in saved.items():
        for other, axes in meshes.items():
            if "eight" not in (name, other) and name != "one":  # each from and on eight, and that of one on all
                continue
            place = str(site.folder / "checkpoints" / name)
            config = site.load(*MESH, "--trainer.mesh.axes", axes, "--initialize_model_from_checkpoint_path", place)
            state = begin(set_up(config), None)
            for one, two in zip(jax.tree.leaves(state.model), jax.tree.leaves(weights), strict=True):
                np.testing.assert_array_equal(one, two, err_msg=f"{name} on {other}")


@pytest.mark.parametrize(
    ("axes", "family"),
    [
        ("{data: 4, model: 2}", "llama"),
        ("{replica: 2, data: 4}", "mudd"),
        pytest.param("{model: 2, data: 2, replica: 2}", "llama", marks=pytest.mark.soak),
    ],
)
def test_a_run_on_a_mesh_goes_on_bit_for_bit_on_it_and_nearly_so_on_another(site: Site, axes: str, family: str) -> None:
    flags: tuple[str, ...] = (*MESH, "--trainer.checkpointer.keep", "[{every: 2}]", "--trainer.mesh.axes")
    if family == "mudd":
        flags = ("--model.type", family, "--model.num_layers", "2", "--model.mudd_prenorm", "true", *flags)
    site.train(*flags, axes, run="whole")
    place = str(site.folder / "checkpoints" / "whole" / "step-2")
    for run, mesh in (("same", axes), ("other", "{data: 1}")):
        site.train(*flags, mesh, "--trainer.load_checkpoint_path", place, run=run)
    whole, same, other = (site.losses(run) for run in ("whole", "same", "other"))
    assert len(whole) == 4 and same == whole[2:]
    np.testing.assert_allclose(other, whole[2:], rtol=1e-5)
    last = [load_saved_model(str(site.folder / "checkpoints" / run)).weights for run in ("whole", "same")]
    for one, two in zip(*map(jax.tree.leaves, last), strict=True):
        np.testing.assert_array_equal(one, two)


def test_rows_shorter_than_the_model_may_see(site: Site) -> None:
    site.train("--train_seq_len", "8")
    assert site.metrics()[0]["throughput/total_tokens"] == 4 * 8
    with pytest.raises(RefusedError, match=r"found train_seq_len: 32 above model.max_seq_len: 16"):
        site.train("--train_seq_len", "32", run="longer")


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--trainer.num_train_steps", "3"], 3),
        (["--trainer.num_train_tokens", "130", "--trainer.num_train_steps", "null"], 3),
        (["--trainer.train_batch_size", "[{start: 0, value: 4}, {start: 2, value: 8}]"], 4),
    ],
)
def test_the_length_of_a_run(site: Site, flags: list[str], steps: int) -> None:
    assert site.train(*flags).steps == steps
    assert len(site.losses()) == steps


def test_the_most_epochs_and_the_number_of_epochs_end_a_run(site: Site) -> None:
    once = site.load("--trainer.num_train_steps", "null", "--trainer.num_train_epochs", "1")
    most = site.load("--trainer.num_train_steps", "100000", "--epoch", "1")
    from ponente.train.setup import set_up

    assert set_up(once).steps == set_up(most).steps < 1000


def test_batches_grow_at_the_step_that_the_config_says(site: Site) -> None:
    site.train("--trainer.train_batch_size", "[{start: 0, value: 4}, {start: 2, value: 8}]")
    totals = [row["throughput/total_tokens"] for _, row in sorted(site.metrics().items()) if "train/loss" in row]
    assert totals == [64, 128, 256, 384]


def test_accumulation_gives_the_same_losses(site: Site) -> None:
    site.train(run="whole")
    site.train("--trainer.per_device_parallelism", "1", run="parts")
    np.testing.assert_allclose(site.losses("parts"), site.losses("whole"), rtol=1e-5)
    assert site.losses("parts") != site.losses("whole")


def test_as_many_rows_at_once_are_taken_as_fit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    needs: dict[int, Need] = {}

    def noting(*given: Any) -> Any:
        rows, found = largest_that_fits(*given)
        needs.update(found)
        return rows, found

    monkeypatch.setattr("ponente.train.compiling.largest_that_fits", noting)
    auto = ("--trainer.per_device_parallelism", "auto", "--trainer.train_batch_size", "16")
    site.train("--trainer.train_batch_size", "16", run="whole")
    site.train(*auto, run="roomy")
    assert list(needs) == [16]
    assert site.losses("roomy") == site.losses("whole")
    monkeypatch.setattr("ponente.train.compiling.device_memory", lambda: needs[16].total - 1)
    site.train(*auto, run="crowded")
    assert 1 < len(needs) <= 3
    np.testing.assert_allclose(site.losses("crowded"), site.losses("whole"), rtol=1e-5)
    monkeypatch.setattr("ponente.train.fitting.device_memory", lambda: needs[16].total - 1)
    with pytest.raises(RefusedError, match=r"found a step that needs .*Set trainer.per_device_parallelism: auto"):
        site.train("--trainer.train_batch_size", "16", run="refused")
    assert not site.metrics("refused")


def test_a_state_that_no_device_has_room_for_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponente.train.fitting.device_memory", lambda: 1000)
    with pytest.raises(RefusedError, match=r"found a state .* GiB for each device, which has"):
        site.train()


def test_evaluation_comes_when_and_on_as_much_as_is_asked(site: Site) -> None:
    def evaluations(run: str) -> dict[int, float]:
        return {step: row["eval/loss"] for step, row in site.metrics(run).items() if "eval/loss" in row}

    site.train("--trainer.steps_per_eval", "2", run="often")
    site.train(run="last")
    site.train("--trainer.max_eval_batches", "1", run="little")
    site.train("--trainer.per_device_eval_parallelism", "3", run="threes")
    assert sorted(evaluations("often")) == [2, 4]
    assert sorted(evaluations("last")) == [4]
    assert evaluations("little")[4] != evaluations("last")[4]
    assert evaluations("threes")[4] == pytest.approx(evaluations("last")[4], rel=1e-5)
    site.train("--trainer.max_eval_batches", "1", "--trainer.per_device_eval_parallelism", "3", run="least")
    assert evaluations("least")[4] != evaluations("little")[4]


def test_entropy_is_told_where_it_is_asked_for(site: Site) -> None:
    result = site.train("--log_entropy", "true", run="asked")
    assert 0 < result.metrics["eval/entropy"] < np.log(512)
    assert "eval/entropy" not in site.train(run="not").metrics


def test_rows_held_out_of_the_train_split_are_evaluated(site: Site) -> None:
    flags = ("--data.num_validation_sequences", "{plays: 8}", "--data.components.plays.source.validation_urls", "[]")
    assert site.train(*flags).metrics["eval/plays/loss"] > 0


def test_an_average_is_evaluated_and_saved(site: Site) -> None:
    site.train(run="plain")
    site.train("--trainer.model_averaging", "{type: ema, beta: 0.5}", run="averaged")
    assert site.losses("averaged") == site.losses("plain")
    metrics = [site.metrics(run)[4]["eval/loss"] for run in ("plain", "averaged")]
    assert metrics[0] != metrics[1]
    names = {name.partition(".")[0] for name in read_metadata(str(site.folder / "checkpoints/averaged/step-4")).arrays}
    assert names == {"step", "model", "optimizer", "average"}
    one, other = site.weights("plain"), site.weights("averaged")
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_permanent_checkpoints_stay_and_temporary_ones_go(site: Site) -> None:
    site.train(
        *("--trainer.checkpointer.keep", "[{every: 2}]", "--trainer.checkpointer.save_interval", "0.0001s"),
        *("--trainer.num_train_steps", "5"),
    )
    assert site.steps() == [2, 4, 5]


def test_a_run_goes_on_where_it_stands_and_its_other_keys_may_say_otherwise(site: Site) -> None:
    whole = site.train("--trainer.num_train_steps", "6", "--optimizer.lr_schedule", "constant", run="whole")
    shorter = ("--optimizer.lr_schedule", "constant", "--trainer.num_train_steps")
    site.train(*shorter, "3")
    result = site.train(*shorter, "6")
    assert result.loss == whole.loss
    assert site.losses() == site.losses("whole")
    with pytest.raises(RefusedError, match="a checkpoint of a later step"):
        site.train(*shorter, "6", "--trainer.load_checkpoint", "false")
    with pytest.raises(RefusedError, match=r"found no checkpoint in .*fresh, but trainer.load_checkpoint: true"):
        site.train("--trainer.load_checkpoint", "true", run="fresh")


def test_a_run_that_is_done_does_nothing_more_but_what_is_due_at_the_end(site: Site) -> None:
    first = site.train()
    again = site.train("--hf_save_path", str(site.folder / "hf"))
    assert again.loss is None
    assert again.metrics["eval/loss"] == first.metrics["eval/loss"]
    assert Path(again.exported or "", "model.safetensors").is_file()


def test_what_changed_since_a_run_began_is_said(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.train("--trainer.num_train_steps", "2")
    with caplog.at_level(logging.WARNING):
        site.train("--trainer.num_train_steps", "4", "--optimizer.learning_rate", "1e-3")
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "optimizer.learning_rate: 0.01 → 0.001" in said
    assert "log_dir" not in said


def test_the_places_that_a_run_may_begin_from(site: Site) -> None:
    site.train("--trainer.num_train_steps", "3", "--trainer.seed", "7", run="source")
    source = str(site.folder / "checkpoints" / "source" / "step-3")
    begun = {
        "fresh": site.train(run="fresh"),
        "weights": site.train("--initialize_model_from_checkpoint_path", source, run="weights"),
        "state": site.train("--initialize_from_checkpoint_path", source, run="state"),
        "onward": site.train("--trainer.initialize_from", source, run="onward"),
        "path": site.train("--trainer.load_checkpoint_path", source, run="path"),
    }
    steps = {run: sorted(step for step, row in site.metrics(run).items() if "train/loss" in row) for run in begun}
    assert steps["fresh"] == steps["weights"] == steps["state"] == [0, 1, 2, 3]
    assert steps["onward"] == steps["path"] == [3]
    first = {run: site.losses(run)[0] for run in begun}
    assert first["weights"] == first["state"] != first["fresh"]
    assert site.losses("weights")[2] != site.losses("state")[2]  # the optimizer remembers in one of them
    assert first["onward"] == first["path"]
    site.train("--trainer.load_checkpoint_path", source, "--trainer.num_train_steps", "6", run="path")
    told = sorted(step for step, row in site.metrics("path").items() if "train/loss" in row)
    assert told == [3, 4, 5]  # from its own checkpoint of step 4, not from the path again


@pytest.mark.parametrize(("saved", "loaded"), [("true", "false"), ("false", "true")])
def test_weights_saved_scanned_load_unrolled_bit_by_bit(site: Site, saved: str, loaded: str) -> None:
    layers = ("--model.num_layers", "3", "--model.scan_layers")
    site.train(*layers, saved, run="saved")
    begin = ("--initialize_model_from_checkpoint_path", str(site.folder / "checkpoints" / "saved"))
    still = ("--optimizer.learning_rate", "0", "--trainer.num_train_steps", "1")
    site.train(*layers, loaded, *begin, *still, run="loaded")
    before, after = site.weights("saved"), site.weights("loaded")
    assert before.keys() == after.keys()
    for name, weights in before.items():
        np.testing.assert_array_equal(weights, after[name], err_msg=name)


def test_two_places_to_begin_from_are_refused(site: Site) -> None:
    with pytest.raises(RefusedError, match=r"found initialize_from_hf: x and trainer.initialize_from: y; needed one"):
        site.train("--initialize_from_hf", "x", "--trainer.initialize_from", "y")


def test_a_run_with_nothing_left_to_do_from_anothers_state_is_refused(site: Site) -> None:
    site.train(run="first")
    source = str(site.folder / "checkpoints" / "first")
    for key in ("initialize_from", "load_checkpoint_path"):
        with pytest.raises(RefusedError, match=r"found a checkpoint of another run, after 4 steps.*num_train_steps"):
            site.train(f"--trainer.{key}", source, run="onward")
    site.train("--trainer.initialize_from", source, "--trainer.num_train_steps", "5", run="onward")
    assert site.train("--trainer.initialize_from", source, "--trainer.num_train_steps", "5", run="onward").loss is None


def test_checkpoints_to_begin_from_that_are_not_there_are_told_before_caches_are_built(site: Site) -> None:
    site.train(run="first")
    cache = site.folder / "another"
    for key in ("trainer.initialize_from", "initialize_from_checkpoint_path", "initialize_model_from_checkpoint_path"):
        with pytest.raises(RefusedError, match=rf"found no checkpoint at {key}.*checkpoints/first has step-4\)"):
            place = str(site.folder / "checkpoints" / "first" / "step-3")
            site.train(f"--{key}", place, "--data.cache_dir", str(cache), run="onward")
    assert not cache.exists()


def test_a_folder_of_runs_is_refused_with_their_names(site: Site) -> None:
    site.train(run="first")
    runs = str(site.folder / "checkpoints")
    told = rf"found {runs}, which holds checkpoints of first; needed .*one run. Give {runs}/first$"
    with pytest.raises(RefusedError, match=told):
        site.train("--trainer.initialize_from", runs, run="onward")
    with pytest.raises(RefusedError, match=told):
        load_saved_model(runs)


def test_an_optimizer_is_not_changed_in_the_middle_of_a_run(site: Site) -> None:
    site.train()
    flags = ("--optimizer.type", "lion", "--trainer.num_train_steps", "5")
    with pytest.raises(RefusedError, match=r"found optimizer.type: lion for a run that was trained with adam"):
        site.train(*flags)
    assert site.train(*flags, "--trainer.allow_partial_checkpoint", "true").steps == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", "-1"), ("min_lr_ratio", "-0.5"), ("warmup", "-3"), ("weight_decay", "-1"),
        ("max_grad_norm", "0"), ("lr_schedule", "cosin"),
    ],
)  # fmt: skip
def test_numbers_of_an_optimizer_that_make_no_sense_are_told_before_caches_are_built(
    site: Site, key: str, value: str
) -> None:
    cache = site.folder / "another"
    with pytest.raises(RefusedError, match=f"found optimizer.{key}: "):
        site.train(f"--optimizer.{key}", value, "--data.cache_dir", str(cache))
    assert not cache.exists()


def test_a_warmup_that_is_longer_than_the_run_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        site.train("--optimizer.warmup", "77")
    assert "a warmup of 77 steps does not end in a cycle of 4" in caplog.text


def test_a_missing_file_of_one_split_is_told_before_the_other_is_built(site: Site) -> None:
    cache = site.folder / "another"
    missing = '{plays: {source: {train_urls: ["TRAIN"], validation_urls: ["/nowhere.jsonl"]}}}'
    train = next(iter(site.load().data.components["plays"].source.files("train"))).path  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"/nowhere\.jsonl"):
        site.train("--data.components", missing.replace("TRAIN", train), "--data.cache_dir", str(cache))
    assert not (cache / "plays").exists()


def test_a_part_of_a_checkpoint_is_enough_where_that_is_allowed(site: Site) -> None:
    site.train(run="source")
    flags = (
        *("--initialize_model_from_checkpoint_path", str(site.folder / "checkpoints" / "source")),
        *("--model.use_qk_norm", "true"),
    )
    with pytest.raises(CheckpointError, match=r"without .*norm_q_H.*allow_partial_checkpoint"):
        site.train(*flags, run="strict")
    site.train(*flags, "--trainer.allow_partial_checkpoint", "true", run="lax")
    assert site.losses("lax")


@pytest.mark.parametrize("of", ["checkpoint", "Hugging Face"])
def test_weights_that_compute_something_else_here_are_told(
    site: Site, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    exported = site.train("--hf_save_path", str(site.folder / "hf"), run="source").exported
    begin = {
        "checkpoint": ("--initialize_model_from_checkpoint_path", str(site.folder / "checkpoints" / "source")),
        "Hugging Face": ("--initialize_from_hf", str(exported)),
    }[of]
    alike = ("--model.max_seq_len", "8", "--model.initializer_range", "0.5", "--model.attn_backend", "xla")
    site.train(*begin, *alike, run="alike")
    assert "for another model" not in caplog.text
    site.train(*begin, "--model.layer_norm_epsilon", "0.01", run="other")
    told = {"checkpoint": "model.layer_norm_epsilon", "Hugging Face": "rms_norm_eps"}[of]
    assert f"were made for another model: {told}: 1e-05 → 0.01" in caplog.text


def test_weights_of_a_model_that_is_not_known_may_still_fit_and_that_is_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(site.train("--hf_save_path", str(site.folder / "hf"), run="source").exported or "")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mistral"}))
    site.train("--initialize_from_hf", str(folder), run="begun")
    assert site.losses("begun")[0] < site.losses("source")[0] - 0.1
    assert f"whether {folder} computes what this model does is not known: found a config.json" in caplog.text


def test_weights_of_another_family_are_told_before_what_they_lack(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.train(run="source")
    place = str(site.folder / "checkpoints" / "source")
    mudd = "{type: mudd, max_seq_len: 16, hidden_dim: 16, intermediate_dim: 32, num_layers: 1, num_heads: 2}"
    with pytest.raises(CheckpointError) as caught:
        site.train("--initialize_model_from_checkpoint_path", place, "--model", mudd, run="other")
    assert "for another model: model.type: llama → mudd" in caplog.text
    assert "optimizer." not in str(caught.value), "only weights were asked for"


def test_a_family_without_a_usual_model_begins_with_one_that_is_named(site: Site) -> None:
    with pytest.raises(RefusedError, match="found initialize_from_hf: true for a family without a usual model"):
        site.load("--model", "{type: mudd, num_layers: 2}", "--initialize_from_hf", "true").check()


def test_a_run_does_not_go_on_with_a_model_that_has_no_place_for_its_weights(site: Site) -> None:
    mudd = (
        "--model",
        "{type: mudd, max_seq_len: 16, hidden_dim: 32, intermediate_dim: 64, num_layers: 2, num_heads: 2}",
    )
    site.train(*mudd)
    flags = (*mudd, "--model.mudd_static", "false", "--trainer.num_train_steps", "5")
    with pytest.raises(CheckpointError, match=r"static_CM.*no place.*another trainer\.id"):
        site.train(*flags)
    assert site.train(*flags, "--trainer.allow_partial_checkpoint", "true").steps == 5


def test_hugging_face_folders_are_written_and_begun_from(site: Site) -> None:
    hf = site.folder / "hf"
    flags = ("--hf_save_path", str(hf), "--hf_save_steps", "2", "--hf_save_dtype", "bfloat16")
    result = site.train(*flags, "--hf_generation_eos_token_ids", "[0, 5]")
    assert sorted(path.name for path in (hf / "run").iterdir()) == ["step_2", "step_4"]
    folder = Path(result.exported or "")
    assert folder == hf / "run" / "step_4"
    tensors = load_file(folder / "model.safetensors")
    assert {str(array.dtype) for array in tensors.values()} == {"bfloat16"}
    assert tensors["model.embed_tokens.weight"].shape[0] == 400  # padding is cut off
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 5]
    assert (folder / "tokenizer.json").is_file()
    assert "run" in (folder / "README.md").read_text()
    begun = ("--initialize_from_hf", str(folder), "--use_hf_model_config", "true", "--model.hidden_dim", "64")
    site.train(*begun, run="begun")
    usual = ("--initialize_from_hf", "true", "--model.reference_checkpoint", str(folder))
    site.train(*usual, "--use_hf_model_config", "true", run="usual")
    assert site.losses("usual") == site.losses("begun")
    assert site.losses("begun")[0] < site.losses()[0] - 0.1
    assert site.weights("begun").keys() == site.weights().keys()


def test_a_vocabulary_larger_than_the_tokenizers_is_kept_where_asked_for(site: Site) -> None:
    folder = Path(site.train("--hf_save_path", str(site.folder / "hf"), run="source").exported or "")
    _grow_vocabulary(folder, 450)
    begun = ("--initialize_from_hf", str(folder), "--use_hf_model_config", "true")
    for run, pads in (("cut", "false"), ("kept", "true")):
        site.train(*begun, "--pad_tokenizer_to_match_model", pads, run=run)
    site.train("--data.vocab_size", "460", run="given")
    places = {run: str(site.folder / "checkpoints" / run) for run in ("cut", "kept", "given")}
    sizes = {run: load_saved_model(place).vocab_size for run, place in places.items()}
    assert sizes == {"cut": 400, "kept": 450, "given": 460}
    assert site.losses("kept")[0] > site.losses("cut")[0]


def _grow_vocabulary(folder: Path, rows: int) -> None:
    from safetensors.numpy import save_file

    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        extra = np.ones((rows - tensors[name].shape[0], tensors[name].shape[1]), tensors[name].dtype)
        tensors[name] = np.concatenate([tensors[name], extra])
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": rows}))


def test_an_upload_follows_each_export(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("ponente.models.hf_hub.upload_folder", lambda folder, repo: sent.append((folder, repo)))
    hf = site.folder / "hf"
    site.train("--hf_save_path", str(hf), "--hf_upload", "org/name")
    assert sent == [(str(hf / "run" / "step_4"), "org/name")]
    with pytest.raises(RefusedError, match="found hf_upload: org/name without hf_save_path"):
        site.train("--hf_upload", "org/name")


def test_an_upload_that_fails_on_the_way_does_not_end_a_run(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(folder: str, repo: str) -> None:
        raise UserError(f"found no way to {repo}")

    monkeypatch.setattr("ponente.models.hf_hub.upload_folder", fail)
    with pytest.raises(UserError, match="found no way to org/name"):  # at the end
        site.train("--hf_save_path", str(site.folder / "hf"), "--hf_upload", "org/name", "--hf_save_steps", "2")
    assert "step_2 was not uploaded (found no way to org/name); training goes on" in caplog.text
    assert len(site.losses()) == 4


def test_numbers_that_are_lost_stop_a_run_unless_it_may_go_on(site: Site) -> None:
    steep = ("--optimizer.learning_rate", "1e30", "--optimizer.max_grad_norm", "null")
    with pytest.raises(NotFiniteError, match=r"at step [1-3]; gradients not finite: .*\(\d+ of \d+\)"):
        site.train(*steep)
    assert site.steps() == []
    site.train(*steep, "--trainer.crash_on_nan", "false", "--trainer.crash_on_inf", "false", run="on")
    assert np.isnan(site.losses("on")[-1])


def test_what_is_watched_is_told_at_its_interval(site: Site) -> None:
    watch = "{interval: 2, include_histograms: true, watch_targets: [params], split_scan_layers: false}"
    site.train("--trainer.watch", watch)
    rows = site.metrics()
    assert [step for step in range(4) if "params/norm/total" in rows[step]] == [0, 2]
    assert "params/norm/blocks.mlp.w_up_DF" in rows[0]
    assert "params/histogram/embed_VD" in rows[2]
    assert not any(name.startswith("grad/") for name in rows[0])
    site.train("--trainer.watch", "{interval: 1, include_per_parameter_norms: false}", run="totals")
    assert {name for name in site.metrics("totals")[0] if "/norm/" in name} == {"grad/norm/total", "params/norm/total"}
    site.train("--trainer.watch", "{interval: 1, include_norms: false}", run="bare")
    assert not any("/norm/" in name for name in site.metrics("bare")[0])


def test_a_profile_is_written_where_it_is_asked_for(site: Site) -> None:
    site.train("--trainer.profiler", "{enabled: true, start_step: 1, num_steps: 2}")
    assert list((site.folder / "logs" / "run" / "profile").rglob("*.xplane.pb"))
    site.train(run="bare")
    assert not (site.folder / "logs" / "bare" / "profile").exists()


def test_a_run_that_is_asked_to_stop_before_its_first_step_says_that_it_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    with monkeypatch.context() as patch:
        patch.setattr("ponente.train.run.set_up", interrupted)
        with pytest.raises(Preempted) as stopped:
            site.train()
    assert stopped.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert site.train().steps == 4


def test_the_last_step_of_a_run_that_is_stopped_is_told_before_that_it_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(done: int, *_: object, **__: object) -> None:
        if done == 5:  # more than are told one by one
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("ponente.train.run.report_progress", interrupted)
    with caplog.at_level(logging.INFO), pytest.raises(Preempted):
        site.train("--trainer.num_train_steps", "19")
    told = [one for one in caplog.messages if one.startswith(("step ", "stopped after")) and ": training" not in one]
    assert told[-1].startswith("stopped after")
    assert told[-2].startswith(f"step {told[-1].split()[2]}/19")


def test_a_run_that_stands_still_is_ended_by_its_watchdog(site: Site) -> None:
    flags = ("--trainer.progress_watchdog.startup_timeout", "0.01s", "--trainer.log_dir", str(site.folder / "logs"))
    command = [sys.executable, "-m", "ponente", "train", "--config_path", str(site.config), *flags]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=site.folder)
    assert ended.returncode == 124
    assert "no progress: waited 0 s for the first step" in ended.stderr
    assert "ponente/train/" in ended.stderr  # where threads are


def test_several_trackers_are_told_the_same(site: Site) -> None:
    path = site.folder / "metrics"
    site.train("--trainer.tracker", f"[{{type: local}}, {{type: json_file, output_path: {path}}}]")
    told = [line for file in path.iterdir() for line in file.read_text().splitlines() if "train/loss" in line]
    assert len(told) == len(site.losses()) == 4


GATED = """
import multiprocessing, time
from dataclasses import dataclass
from ponente.store.metrics import read_metrics
from ponente.store.sources import SourceConfig, UrlSourceConfig
from ponente.store.sources.units import plan_units

@SourceConfig.register_subclass("gated")
@dataclass(frozen=True, kw_only=True)
class Gated(UrlSourceConfig):
    run: str = ""

    def units(self, split):
        return plan_units(self.files(split), self._reader_of, group_bytes=1)

    def read(self, unit, fields, *, skip=0):
        if "late" in str(unit) and multiprocessing.parent_process() is not None:
            deadline = time.monotonic() + 100
            while not any(row.step >= 2 for row in read_metrics(self.run)):
                assert time.monotonic() < deadline, "no step was made before the cache was whole"
                time.sleep(0.05)
        yield from super().read(unit, fields, skip=skip)
"""


def test_training_begins_before_its_cache_is_built(site: Site, caches: Path) -> None:
    for name, source in {"0-early": "train", "1-late": "other"}.items():
        (site.folder / f"{name}.jsonl").write_bytes((caches / f"{source}.jsonl").read_bytes())
    (site.folder / "gated.py").write_text(GATED)
    text = site.config.read_text().replace(str(caches / "cache"), str(site.folder / "cache"))
    text = text.replace(f'train_urls: ["{caches}/train.jsonl"]', f'type: gated, run: "{site.folder}/logs/run", '
                        f'train_urls: ["{site.folder}/*.jsonl"]')  # fmt: skip
    site.config.write_text(f"plugins: [gated.py]\n{text}")
    flags = ("--data.shuffle", "64", "--trainer.num_train_steps", "400")  # more than the early file has rows for
    site.train(*flags)
    site.train(*flags, run="again")
    assert len(site.losses()) == 400
    assert site.losses("again") == site.losses()  # a cache that was there gives the same batches
    assert open_cache(str(site.folder / "cache" / "plays" / "train")).rows == 400


def test_settings_of_jax_are_made(site: Site) -> None:
    compiled = site.folder / "compiled"
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_debug_infs
    try:
        site.train(
            *("--trainer.jax_compilation_cache_dir", str(compiled)),
            *("--trainer.jax_config", "{jax_debug_infs: true}", "--trainer.deterministic", "true"),
        )
        assert jax.config.jax_debug_infs
        assert list(compiled.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_debug_infs", before[1])
    with pytest.raises(RefusedError, match=r"found trainer.jax_config.jax_nonsense"):
        site.train("--trainer.jax_config", "{jax_nonsense: 1}")


def test_an_accelerator_that_is_required_and_missing_is_an_error(site: Site) -> None:
    with pytest.raises(RefusedError, match="found no accelerator"):
        site.train("--trainer.require_accelerator", "true")


def test_a_mixture_tells_the_share_of_each_dataset(site: Site, caches: Path) -> None:
    site.train(
        *("--data.components.others.source.train_urls", f'["{caches}/other.jsonl"]'),
        *("--data.train_weights", "{plays: 0.5, others: 0.5}", "--trainer.train_batch_size", "16"),
    )
    row = site.metrics()[0]
    assert row["mixture/plays"] + row["mixture/others"] == 1
    assert 0 < row["mixture/plays"] < 1


def test_a_checkpoint_is_evaluated_exported_and_written_with_by_command(site: Site, tiny_tokenizer: str) -> None:
    result = site.train()
    flags = ["--checkpoint_path", result.checkpoint]
    assert evaluate_saved(str(site.config), flags)["eval/loss"] == result.metrics["eval/loss"]
    assert evaluate_saved(None, flags)["eval/loss"] == result.metrics["eval/loss"]
    shorter = evaluate_saved(None, [*flags, "--max_eval_length", "8"])["eval/loss"]
    longer = evaluate_saved(str(site.config), [*flags, "--max_eval_length", "8"])["eval/loss"]
    assert longer == shorter != result.metrics["eval/loss"]
    assert "eval/train/plays/loss" in evaluate_saved(str(site.config), [*flags, "--eval_on_train", "true"])
    folder = export_checkpoint(None, [*flags, "--output_dir", str(site.folder / "hf")])
    again = evaluate_saved(str(site.config), ["--hf_checkpoint", folder])["eval/loss"]
    assert again == pytest.approx(result.metrics["eval/loss"], rel=1e-6)
    sampling = SamplingConfig(max_new_tokens=8)
    texts = ["".join(piece for _, piece in sample(place, ["To be"], sampling)) for place in (result.checkpoint, folder)]
    assert texts[0] == texts[1]
    by_run = export_checkpoint(
        str(site.config),
        [
            *("--trainer.id", "run", "--trainer.checkpointer.base_path", str(site.folder / "checkpoints")),
            *("--output_dir", str(site.folder / "by-run"), "--override_vocab_size", "300"),
        ],
    )
    assert load_file(Path(by_run, "model.safetensors"))["lm_head.weight"].shape[0] == 300


def test_logits_of_the_page_are_those_that_text_is_written_by(site: Site) -> None:
    place = site.train().checkpoint
    (code,) = re.findall(r"## A saved model in Python\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("checkpoints/NAME", place), names)
    likeliest = int(names["logits_BSV"][0, -1].argmax())
    assert names["logits_BSV"].shape == (1, len(names["ids"]), names["saved"].vocab_size)
    greedy = SamplingConfig(max_new_tokens=1, temperature=0)
    written = "".join(piece for _, piece in sample(place, ["ROMEO: what light"], greedy))
    assert written == names["tokenizer"].decode([likeliest])


def test_an_export_by_command_is_uploaded_where_it_is_told_to(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("ponente.models.hf_hub.upload_folder", lambda folder, repo: sent.append((folder, repo)))
    place = site.folder / "hf"
    flags = ["--checkpoint_path", site.train().checkpoint, "--output_dir", str(place)]
    with pytest.raises(RefusedError, match="needed the name of a repository"):
        export_checkpoint(None, [*flags, "--upload_to_hf", "true"])
    assert not place.exists()  # said before any work
    export_checkpoint(None, [*flags, "--upload_to_hf", "org/name"])
    assert sent == [(str(place), "org/name")]


def test_an_evaluation_with_a_flag_of_the_trainer_keeps_the_others_of_the_run(site: Site) -> None:
    result = site.train("--trainer.mp", "p=f32,c=bfloat16")
    flags = ["--checkpoint_path", result.checkpoint]
    assert (
        evaluate_saved(None, [*flags, "--trainer.max_eval_batches", "1000"])["eval/loss"]
        == (result.metrics["eval/loss"])
    )
    assert evaluate_saved(None, [*flags, "--trainer.mp", "f32"])["eval/loss"] != result.metrics["eval/loss"]


def test_a_text_ends_with_any_of_the_end_tokens_that_the_config_names(site: Site) -> None:
    def written(place: str) -> str:
        return "".join(piece for _, piece in sample(place, ["To be"], SamplingConfig(max_new_tokens=8)))

    plain = site.train(run="plain").checkpoint
    every_id = list(range(load_saved_model(plain).vocab_size))
    checkpoint = site.train("--hf_generation_eos_token_ids", str(every_id)).checkpoint
    folder = export_checkpoint(None, ["--checkpoint_path", checkpoint, "--output_dir", str(site.folder / "hf")])
    assert (written(checkpoint), written(folder)) == ("", "")
    assert written(plain) != ""


@pytest.mark.parametrize("name", ["mixtral", "mpt", "qwen2"])
def test_families_of_later_are_refused_by_name(site: Site, name: str) -> None:
    with pytest.raises(UserError, match=r"(?s)not yet: model\.type.*gpt2, gpt_neox, llama"):
        site.load("--model.type", name)


def test_commands_that_lack_what_they_need_say_so(site: Site) -> None:
    with pytest.raises(RefusedError, match="found no --config_path"):
        load_train_config(None)
    with pytest.raises(RefusedError, match="found no --config_path"):
        evaluate_saved(None, [])
    with pytest.raises(RefusedError, match=r"found max_eval_length: 17 for a model of 16 tokens"):
        evaluate_saved(str(site.config), ["--checkpoint_path", site.train().checkpoint, "--max_eval_length", "17"])
    with pytest.raises(RefusedError, match="found 0 of --checkpoint_path and --hf_checkpoint"):
        evaluate_saved(str(site.config), [])
    with pytest.raises(RefusedError, match="found no --output_dir"):
        export_checkpoint(str(site.config), [])
    with pytest.raises(RefusedError, match=r"found neither --checkpoint_path nor --trainer.id"):
        export_checkpoint(str(site.config), ["--output_dir", "x"])


def test_a_checkpoint_to_evaluate_that_is_not_there_is_told_by_its_key(site: Site) -> None:
    for config in (None, str(site.config)):
        with pytest.raises(
            RefusedError, match=r"^found no checkpoint at checkpoint_path: nowhere/step-3; .*--hf_checkpoint"
        ):
            evaluate_saved(config, ["--checkpoint_path", "nowhere/step-3"])


def test_weights_are_float32_where_parameters_are(site: Site) -> None:
    site.train("--trainer.mp", "bfloat16")
    assert {str(array.dtype) for array in site.weights().values()} == {"bfloat16"}
    assert jnp.bfloat16 == load_saved_model(str(site.folder / "checkpoints" / "run")).weights.head_DV().dtype
