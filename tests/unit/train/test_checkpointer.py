"""When checkpoints are due, which stay, and what a run that begins again finds. Time is a number that tests set."""

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ponente.config.decode import decode
from ponente.config.errors import RefusedError, UserError
from ponente.config.tree import Tree
from ponente.store.checkpoint import CheckpointError, load, read_metadata, whole_checkpoints
from ponente.train.checkpointer import Checkpointer, CheckpointerConfig, KeepConfig

RUN = "ponente-1"


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def config_in(folder: Path, **fields: Any) -> CheckpointerConfig:
    return CheckpointerConfig(base_path=str(folder), **fields)


def state(step: int) -> dict[str, jax.Array]:
    return {"step": jnp.int32(step), "model.w": jnp.full((4, 4), float(step))}


def save(checkpointer: Checkpointer, *steps: int) -> None:
    for step in steps:
        checkpointer.save(step, state(step), {"run": RUN})


def kinds(folder: Path) -> dict[int, str]:
    found = whole_checkpoints(str(folder))
    return {step: "temporary" if metadata.is_temporary else "permanent" for step, metadata in found.items()}


def stages(*pairs: tuple[int, int | None]) -> tuple[KeepConfig, ...]:
    return tuple(KeepConfig(every=every, until=until) for every, until in pairs)


def test_steps_of_each_stage_are_permanent(tmp_path: Path) -> None:
    config = config_in(tmp_path, keep=stages((2, 6), (5, 20)), save_interval=None)
    with Checkpointer(config, RUN, 0) as checkpointer:
        due = [step for step in range(41) if checkpointer.due(step)]
    assert due == [2, 4, 6, 10, 15, 20]


def test_the_last_stage_may_be_open_and_the_last_step_is_always_permanent(tmp_path: Path) -> None:
    config = config_in(tmp_path, keep=stages((3, 6), (10, None)), save_interval=None)
    with Checkpointer(config, RUN, 0, last_step=37) as checkpointer:
        due = {step: checkpointer.due(step) for step in range(38) if checkpointer.due(step)}
    assert due == dict.fromkeys([3, 6, 10, 20, 30, 37], "permanent")


def test_temporary_checkpoints_come_by_the_clock(tmp_path: Path, clock: Clock) -> None:
    with Checkpointer(config_in(tmp_path, save_interval="15m"), RUN, 0, clock=clock) as checkpointer:
        assert checkpointer.seconds_to_next() == 900
        clock.seconds = 899
        assert checkpointer.due(10) is None
        assert checkpointer.seconds_to_next() == 1
        clock.seconds = 901
        assert checkpointer.due(11) == "temporary"
        assert checkpointer.seconds_to_next() == 0
        save(checkpointer, 11)
        assert checkpointer.due(11) is None
        assert checkpointer.seconds_to_next() == 900
        assert checkpointer.due(10_000) == "permanent"


def test_a_permanent_save_begins_the_interval_anew(tmp_path: Path, clock: Clock) -> None:
    with Checkpointer(config_in(tmp_path, keep=stages((5, None))), RUN, 0, clock=clock) as checkpointer:
        clock.seconds = 800
        save(checkpointer, 5)
        clock.seconds = 1000
        assert checkpointer.due(6) is None


def test_without_an_interval_nothing_is_temporary(tmp_path: Path, clock: Clock) -> None:
    with Checkpointer(config_in(tmp_path, save_interval=None, keep=()), RUN, 0, clock=clock) as checkpointer:
        clock.seconds = 1e9
        assert checkpointer.due(7) is None
        assert checkpointer.seconds_to_next() == float("inf")


def test_the_state_that_a_run_begins_with_is_not_saved_again(tmp_path: Path, clock: Clock) -> None:
    with Checkpointer(config_in(tmp_path, keep=stages((10, None))), RUN, 20, clock=clock) as checkpointer:
        clock.seconds = 1e6
        assert checkpointer.due(0) is None
        assert checkpointer.due(20) is None
        assert checkpointer.due(21) == "temporary"


def test_a_temporary_checkpoint_goes_when_the_next_is_whole_and_permanent_ones_stay(tmp_path: Path) -> None:
    with Checkpointer(config_in(tmp_path, keep=stages((10, None))), RUN, 0) as checkpointer:
        seen = []
        for step in (3, 7, 10, 12, 15, 20):
            save(checkpointer, step)
            checkpointer.due(0)
            seen.append(step)
        checkpointer.finish()
    assert kinds(tmp_path / RUN) == {10: "permanent", 20: "permanent"}
    assert not [path.name for path in (tmp_path / RUN).iterdir() if path.name.startswith(".part-")]


@pytest.mark.parametrize(("kept", "left"), [(1, [9]), (2, [8, 9]), (3, [7, 8, 9]), (20, list(range(1, 10)))])
def test_so_many_of_the_last_checkpoints_stay_though_temporary(kept: int, left: list[int], tmp_path: Path) -> None:
    with Checkpointer(config_in(tmp_path, keep_last_temporary_checkpoints=kept), RUN, 0) as checkpointer:
        save(checkpointer, *range(1, 10))
    assert list(kinds(tmp_path / RUN)) == left


@pytest.mark.parametrize(("deletes", "left"), [(True, [6]), (False, [2, 6])])
def test_temporary_checkpoints_of_earlier_attempts_go_too_unless_they_are_to_stay(
    deletes: bool, left: list[int], tmp_path: Path
) -> None:
    config = config_in(tmp_path, delete_old_temp_checkpoints=deletes)
    with Checkpointer(config, RUN, 0) as checkpointer:
        save(checkpointer, 2)
    with Checkpointer(config, RUN, 2) as checkpointer:
        save(checkpointer, 4, 6)
    assert list(kinds(tmp_path / RUN)) == left


def test_what_is_saved_is_found_by_the_next_attempt(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    assert config.newest(RUN) is None
    with Checkpointer(config, RUN, 0) as checkpointer:
        save(checkpointer, 3, 5)
    path = config.newest(RUN)
    assert path == str(tmp_path / RUN / "step-5")
    metadata = read_metadata(path)
    assert (metadata.step, metadata.about) == (5, {"run": RUN})
    assert load(path, state(0))["model.w"][0, 0] == 5


def test_temporary_checkpoints_may_lie_elsewhere(tmp_path: Path) -> None:
    config = config_in(tmp_path / "kept", temporary_base_path=str(tmp_path / "scratch"), keep=stages((10, None)))
    with Checkpointer(config, RUN, 0) as checkpointer:
        save(checkpointer, 10, 13)
    assert (kinds(tmp_path / "kept" / RUN), kinds(tmp_path / "scratch" / RUN)) == (
        {10: "permanent"},
        {13: "temporary"},
    )
    assert config.newest(RUN) == str(tmp_path / "scratch" / RUN / "step-13")
    with Checkpointer(config, RUN, 13) as checkpointer:
        save(checkpointer, 20)
    assert config.newest(RUN) == str(tmp_path / "kept" / RUN / "step-20")
    assert kinds(tmp_path / "scratch" / RUN) == {}


def test_the_base_path_may_be_the_folder_itself(tmp_path: Path) -> None:
    config = config_in(tmp_path, append_run_id_to_base_path=False)
    with Checkpointer(config, RUN, 0) as checkpointer:
        save(checkpointer, 1)
    assert config.newest("any other name") == str(tmp_path / "step-1")


def test_a_save_that_is_repeated_is_fine_and_a_temporary_one_becomes_permanent(tmp_path: Path) -> None:
    with Checkpointer(config_in(tmp_path), RUN, 0) as checkpointer:
        save(checkpointer, 6, 6)
    assert kinds(tmp_path / RUN) == {6: "temporary"}
    with Checkpointer(config_in(tmp_path), RUN, 6, last_step=6) as checkpointer:
        assert checkpointer.due(6) == "permanent"
        save(checkpointer, 6)
        assert checkpointer.due(6) is None
    assert kinds(tmp_path / RUN) == {6: "permanent"}


def test_a_run_that_begins_before_its_own_checkpoints_is_refused(tmp_path: Path) -> None:
    with Checkpointer(config_in(tmp_path), RUN, 0) as checkpointer:
        save(checkpointer, 6)
    with pytest.raises(RefusedError, match=r"step-6, a checkpoint of a later step than 5.*needed.*trainer\.id"):
        Checkpointer(config_in(tmp_path), RUN, 5)
    Checkpointer(config_in(tmp_path), RUN, 6).finish()  # the refused one holds nothing


def test_two_runs_of_one_id_cannot_be_at_work_at_once(tmp_path: Path) -> None:
    with Checkpointer(config_in(tmp_path), RUN, 0):
        with pytest.raises(RefusedError, match=r"in use by the process.*needed.*trainer\.id"):
            Checkpointer(config_in(tmp_path), RUN, 0)
        Checkpointer(config_in(tmp_path), "another", 0).finish()
    Checkpointer(config_in(tmp_path), RUN, 0).finish()


def test_leftovers_of_a_killed_save_are_removed_at_the_start_but_not_those_of_a_living_one(tmp_path: Path) -> None:
    leftover = tmp_path / RUN / ".part-0123" / "step-4"
    leftover.mkdir(parents=True)
    with Checkpointer(config_in(tmp_path), RUN, 0):
        assert not leftover.exists()
        leftover.mkdir(parents=True)
        with pytest.raises(RefusedError):
            Checkpointer(config_in(tmp_path), RUN, 0)
        assert leftover.exists()


def break_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file where the run's folder was")


def test_a_save_that_failed_in_the_background_is_raised_by_the_next_call_and_the_run_can_go_on(tmp_path: Path) -> None:
    checkpointer = Checkpointer(config_in(tmp_path), RUN, 0)
    break_folder(tmp_path / RUN)
    save(checkpointer, 1)
    with pytest.raises(CheckpointError, match="step-1 cannot be written"):
        save(checkpointer, 2)
    (tmp_path / RUN).unlink()
    assert checkpointer.due(2) is None
    save(checkpointer, 2)
    checkpointer.finish()
    assert list(kinds(tmp_path / RUN)) == [2]


def test_a_failure_of_the_last_save_is_raised_at_the_end_and_hides_no_other_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(config_in(tmp_path), RUN, 0)
    break_folder(tmp_path / RUN)
    save(checkpointer, 1)
    with pytest.raises(CheckpointError):
        checkpointer.finish()
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError), Checkpointer(config_in(tmp_path), "b", 0) as other:
        break_folder(tmp_path / "b")
        save(other, 1)
        raise KeyError("what ended training")
    assert "step-1 cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"keep": [{"every": 5}, {"every": 10, "until": 20}]}, "not in order"),
        ({"keep": [{"every": 5, "until": 20}, {"every": 10, "until": 20}]}, "not in order"),
        ({"keep": [{"every": 0}]}, "every: 0"),
        ({"save_interval": "soon"}, "save_interval: soon"),
        ({"save_interval": -3}, "save_interval: -3"),
        ({"keep_last_temporary_checkpoints": 0}, "needed 1 or more"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_in_three_parts(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        decode(CheckpointerConfig, Tree(fields))
    assert said in str(caught.value)
    assert "found" in str(caught.value)
    assert "needed" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "seconds"), [("15m", 900), ("30s", 30), ("1h", 3600), (45, 45), (None, float("inf"))]
)
def test_intervals_are_written_as_in_levanter(written: Any, seconds: float, tmp_path: Path, clock: Clock) -> None:
    fields = {"base_path": str(tmp_path), "save_interval": written, "keep": [{"every": 100, "until": None}]}
    config = decode(CheckpointerConfig, Tree(fields))
    with Checkpointer(config, RUN, 0, clock=clock) as checkpointer:
        assert checkpointer.seconds_to_next() == seconds
        assert checkpointer.due(100) == "permanent"
