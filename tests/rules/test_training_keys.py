"""Every key of a training config has a test that fails if the key is ignored, and a test that lists the refused ones.

The table names the test of each key of the top level and the trainer. Keys of data, models and optimizers are held by
the tests of their rooms, where each must at least be named. `tests/unit/config/test_not_yet.py` lists what is refused.
"""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ponente.models.families import lm_families
from ponente.train.averaging import EmaConfig
from ponente.train.checkpointer import CheckpointerConfig, KeepConfig
from ponente.train.config import TrainConfig
from ponente.train.data.config import TrainComponentConfig, TrainDataConfig
from ponente.train.distributed import DistributedConfig
from ponente.train.mesh import MeshConfig
from ponente.train.optimizers import OptimizerConfig
from ponente.train.profiling import ProfilerConfig
from ponente.train.quantization import QuantizationConfig
from ponente.train.trainer import TrainerConfig
from ponente.train.watch import WatchConfig
from ponente.train.watchdog import WatchdogConfig

ROOT = Path(__file__).resolve().parents[2]
UNIT = "tests/unit/train"
RUNS = f"{UNIT}/test_training.py"
POLICY = f"{UNIT}/test_checkpointer.py"
MESH = f"{UNIT}/test_mesh.py"
PROCESSES = "tests/faults/test_processes.py"
TWO = "test_two_processes_train_as_one_does_and_go_on_exactly_when_one_was_killed"
SECTIONS = ("data", "model", "trainer", "optimizer")
NESTED = {
    "watch": WatchConfig,
    "profiler": ProfilerConfig,
    "progress_watchdog": WatchdogConfig,
    "checkpointer": CheckpointerConfig,
    "model_averaging": EmaConfig,
    "quantization": QuantizationConfig,
    "mesh": MeshConfig,
    "distributed": DistributedConfig,
}

TESTS: dict[str, str] = {
    "train_seq_len": f"{RUNS}::test_rows_shorter_than_the_model_may_see",
    "data_seed": f"{RUNS}::test_seeds_change_what_is_trained",
    "epoch": f"{RUNS}::test_the_most_epochs_and_the_number_of_epochs_end_a_run",
    "z_loss_weight": f"{RUNS}::test_z_loss_is_part_of_the_loss_but_not_of_cross_entropy",
    "initialize_from_hf": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "use_hf_model_config": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "pad_tokenizer_to_match_model": f"{RUNS}::test_a_vocabulary_larger_than_the_tokenizers_is_kept_where_asked_for",
    "initialize_from_checkpoint_path": f"{RUNS}::test_the_places_that_a_run_may_begin_from",
    "initialize_model_from_checkpoint_path": f"{RUNS}::test_the_places_that_a_run_may_begin_from",
    "hf_save_path": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "hf_save_steps": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "hf_upload": f"{RUNS}::test_an_upload_follows_each_export",
    "hf_save_dtype": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "hf_generation_eos_token_ids": f"{RUNS}::test_hugging_face_folders_are_written_and_begun_from",
    "log_entropy": f"{RUNS}::test_entropy_is_told_where_it_is_asked_for",
    "trainer.seed": f"{RUNS}::test_seeds_change_what_is_trained",
    "trainer.mp": f"{RUNS}::test_mp_bfloat16_differs_a_little",
    "trainer.quantization.fp8": f"{RUNS}::test_products_in_8_bits_differ_a_little",
    "trainer.distributed.coordinator_address": f"{PROCESSES}::{TWO}",
    "trainer.distributed.num_processes": f"{PROCESSES}::{TWO}",
    "trainer.distributed.process_id": f"{PROCESSES}::{TWO}",
    "trainer.distributed.local_device_ids": f"{UNIT}/test_distributed.py::test_jax_is_told_what_the_config_says",
    "trainer.distributed.initialize_jax_distributed": f"{UNIT}/test_distributed.py::test_one_process_is_alone",
    "trainer.distributed.timeout": f"{PROCESSES}::test_a_process_that_does_not_come_is_named",
    "trainer.mesh.axes": f"{MESH}::test_sizes_of_axes_follow_from_the_devices",
    "trainer.mesh.dcn_axes": f"{MESH}::test_sizes_of_axes_follow_from_the_devices",
    "trainer.mesh.batch_axis_name": f"{MESH}::test_a_mesh_that_cannot_be_is_refused",
    "trainer.mesh.compute_mapping": f"{MESH}::test_a_mesh_that_cannot_be_is_refused",
    "trainer.mesh.param_mapping": f"{MESH}::test_a_mesh_that_cannot_be_is_refused",
    "trainer.mesh.shared_mapping": f"{MESH}::test_sizes_of_axes_follow_from_the_devices",
    "trainer.id": f"{RUNS}::test_a_run_goes_on_where_it_stands_and_its_other_keys_may_say_otherwise",
    "trainer.num_train_steps": f"{RUNS}::test_the_length_of_a_run",
    "trainer.num_train_tokens": f"{RUNS}::test_the_length_of_a_run",
    "trainer.num_train_epochs": f"{RUNS}::test_the_most_epochs_and_the_number_of_epochs_end_a_run",
    "trainer.train_batch_size": f"{RUNS}::test_batches_grow_at_the_step_that_the_config_says",
    "trainer.per_device_parallelism": f"{RUNS}::test_accumulation_gives_the_same_losses",
    "trainer.per_device_eval_parallelism": f"{RUNS}::test_evaluation_comes_when_and_on_as_much_as_is_asked",
    "trainer.steps_per_eval": f"{RUNS}::test_evaluation_comes_when_and_on_as_much_as_is_asked",
    "trainer.max_eval_batches": f"{RUNS}::test_evaluation_comes_when_and_on_as_much_as_is_asked",
    "trainer.load_checkpoint": f"{RUNS}::test_a_run_goes_on_where_it_stands_and_its_other_keys_may_say_otherwise",
    "trainer.load_checkpoint_path": f"{RUNS}::test_the_places_that_a_run_may_begin_from",
    "trainer.initialize_from": f"{RUNS}::test_the_places_that_a_run_may_begin_from",
    "trainer.allow_partial_checkpoint": f"{RUNS}::test_a_part_of_a_checkpoint_is_enough_where_that_is_allowed",
    "trainer.log_dir": f"{RUNS}::test_a_run_leaves_metrics_a_checkpoint_a_record_and_a_log",
    "trainer.tracker": f"{RUNS}::test_several_trackers_are_told_the_same",
    "trainer.watch.watch_targets": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.watch.include_norms": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.watch.include_per_parameter_norms": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.watch.include_histograms": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.watch.split_scan_layers": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.watch.interval": f"{RUNS}::test_what_is_watched_is_told_at_its_interval",
    "trainer.profiler.enabled": f"{RUNS}::test_a_profile_is_written_where_it_is_asked_for",
    "trainer.profiler.start_step": f"{UNIT}/test_profiling.py::test_the_steps_that_are_profiled",
    "trainer.profiler.num_steps": f"{UNIT}/test_profiling.py::test_the_steps_that_are_profiled",
    "trainer.profiler.perfetto_link": f"{UNIT}/test_profiling.py::test_the_steps_that_are_profiled",
    "trainer.crash_on_nan": f"{RUNS}::test_numbers_that_are_lost_stop_a_run_unless_it_may_go_on",
    "trainer.crash_on_inf": f"{UNIT}/test_step.py::test_infinite_numbers_stop_the_run_by_their_own_key",
    "trainer.model_averaging.beta": f"{RUNS}::test_an_average_is_evaluated_and_saved",
    "trainer.jax_config": f"{RUNS}::test_settings_of_jax_are_made",
    "trainer.jax_compilation_cache_dir": f"{RUNS}::test_settings_of_jax_are_made",
    "trainer.require_accelerator": f"{RUNS}::test_an_accelerator_that_is_required_and_missing_is_an_error",
    "trainer.offload_optimizer": f"{UNIT}/test_offload.py::test_a_run_goes_on_with_it_and_without_it",
    "trainer.deterministic": f"{UNIT}/test_devices.py::test_deterministic_runs_ask_xla_for_it",
    "trainer.progress_watchdog.step_timeout": f"{UNIT}/test_throughput.py::test_a_watchdog_ends_a_run_that_stands",
    "trainer.progress_watchdog.startup_timeout": f"{RUNS}::test_a_run_that_stands_still_is_ended_by_its_watchdog",
    "trainer.checkpointer.base_path": f"{RUNS}::test_a_run_leaves_metrics_a_checkpoint_a_record_and_a_log",
    "trainer.checkpointer.save_interval": f"{RUNS}::test_permanent_checkpoints_stay_and_temporary_ones_go",
    "trainer.checkpointer.keep": f"{RUNS}::test_permanent_checkpoints_stay_and_temporary_ones_go",
    **{
        f"trainer.checkpointer.{field.name}": POLICY
        for field in dataclasses.fields(CheckpointerConfig)
        if field.name not in ("base_path", "save_interval", "keep")
    },
}


def keys() -> list[str]:
    found = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in SECTIONS]
    for field in dataclasses.fields(TrainerConfig):
        inner = NESTED.get(field.name)
        names = [""] if inner is None else [f".{one.name}" for one in dataclasses.fields(inner)]
        found += [f"trainer.{field.name}{name}" for name in names]
    return found


def test_the_table_has_every_key_and_no_other() -> None:
    assert set(TESTS) == set(keys())


@pytest.mark.parametrize("test", sorted(set(TESTS.values())))
def test_the_tests_of_the_table_are_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in functions


def room_keys() -> list[tuple[str, str]]:
    classes: dict[str, tuple[str, ...]] = {}

    def add(owner: Any, *folders: str) -> None:
        for field in dataclasses.fields(owner):
            classes.setdefault(f"{owner.__name__}.{field.name}", folders)

    for family in lm_families().values():
        add(family, "unit/models", "parity", "unit/train")
    for optimizer in OptimizerConfig.get_known_choices().values():
        add(optimizer, "unit/train", "parity")
    for data in (TrainDataConfig, TrainComponentConfig):
        add(data, "unit/batches", "unit/tokens", "unit/train", "flow")
    add(KeepConfig, "unit/train")
    return [(name, folder) for name, folders in classes.items() for folder in [" ".join(folders)]]


@pytest.mark.parametrize(("name", "folders"), room_keys())
def test_keys_of_data_models_and_optimizers_are_named_by_a_test(name: str, folders: str) -> None:
    key = name.partition(".")[2]
    files = [path for folder in folders.split() for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert any(re.search(rf"\b{key}\b", path.read_text()) for path in files), f"no test names {key}"
