"""A run: functions get what their configs say, in either launcher, and what they leave behind is stored."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import telling
from telling import EVERYTHING, EverythingConfig, squares_graph
from winds import winds

from ponente.cluster import CpuOnly, GpuConfig, Resources, TpuPodConfig
from ponente.config import UserError
from ponente.executor import (
    ExecutorOptions,
    ExecutorStep,
    Retries,
    plan_steps,
    run_steps,
    this_output_path,
    this_state_path,
)
from ponente.executor.graph import build_graph
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import State
from ponente.executor.records import Commit, StepFolder
from ponente.executor.report import outcome_text
from ponente.store.volume import volume_of

Runner = Callable[..., RunOutcome]
both_launchers = pytest.mark.parametrize("launcher", ["driver", "subprocess"])


def commit_of(prefix: str, step: ExecutorStep) -> Commit:
    folder = StepFolder(prefix, build_graph([step]).node_of(step).folder_name)
    commit = folder.last_commit(folder.view())
    assert commit is not None
    return commit


def log_of(prefix: str, step: ExecutorStep) -> str:
    folder = Path(prefix) / build_graph([step]).node_of(step).folder_name
    return "".join(path.read_text() for path in sorted(folder.glob(".logs/*.log")))


def error_of(outcome: RunOutcome) -> str:
    [failed] = outcome.of(Fate.FAILED)
    assert failed.error is not None
    return f"{failed.error.type}: {failed.error.message}"


# -- what a function gets


@both_launchers
def test_a_config_arrives_with_every_type_and_value(launcher: str, run: Runner) -> None:
    step = ExecutorStep(name="told", fn=telling.tell, config=EVERYTHING)
    outcome = run(step, launcher=launcher)
    place = outcome.path(step)
    told = json.loads(Path(place, "told.json").read_text())
    expected = {name: repr(getattr(EVERYTHING, name)) for name in EverythingConfig.__dataclass_fields__}
    expected |= {
        "several": "['a', 'b']",
        "output": repr(f"{place}/told.json"),
        "state": repr(f"{Path(place).parent}/state/kept"),
    }
    assert told == expected


@both_launchers
def test_env_reaches_the_step_and_goes_with_it(launcher: str, run: Runner) -> None:
    config = {"output": this_output_path("told.json")}
    step = ExecutorStep(name="talk", fn=telling.talk, config=config, env={"WIND": "ponente"})
    outcome = run(step, launcher=launcher)
    told = json.loads(Path(outcome.path(step / "told.json")).read_text())
    assert told["WIND"] == "ponente"
    assert (told["pid"] == os.getpid()) == (launcher == "driver")
    assert "WIND" not in os.environ


def test_env_cannot_be_given_to_steps_in_threads_of_one_process(run: Runner, prefix: str) -> None:
    step = ExecutorStep(name="talk", fn=telling.talk, config={"output": this_output_path("x")}, env={"WIND": "1"})
    with pytest.raises(UserError, match=r"found env on talk-.*use --max_concurrent 1 or --launcher subprocess"):
        run(step, max_concurrent=2)
    assert not Path(prefix).exists()


@both_launchers
def test_the_state_folder_outlives_attempts_and_the_output_folder_does_not(
    launcher: str, run: Runner, prefix: str
) -> None:
    config = {"state": this_state_path("deep/kept"), "output": this_output_path("found")}
    step = ExecutorStep(name="remember", fn=telling.remember, config=config, retries=Retries(errors=1))
    outcome = run(step, launcher=launcher)
    assert outcome.exit_code == 0
    output = Path(outcome.path(step))
    assert {path.name for path in output.iterdir()} == {"found"}
    assert (output / "found").read_text() == "kept by the first attempt"
    assert {path.name for path in output.parent.iterdir() if not path.name.startswith(".")} == {output.name, "state"}


# -- what is stored


@both_launchers
def test_a_summary_is_stored_with_the_commit(launcher: str, run: Runner, prefix: str) -> None:
    step = ExecutorStep(name="told", fn=telling.tell, config=EVERYTHING)
    run(step, launcher=launcher)
    assert commit_of(prefix, step).summary == {
        "values": {"fields": len(EverythingConfig.__dataclass_fields__)},
        "tables": {"t": [{"a": 1, "b": None}]},
        "series": {"loss": [2.0, 1.5]},
    }


@pytest.mark.parametrize(("size", "told"), [(1 << 18, "found a summary of 2621"), ("bad", "object")])
def test_a_summary_that_is_too_large_or_no_json_fails_the_step(size: Any, told: str, run: Runner) -> None:
    step = ExecutorStep(name="summary", fn=telling.summarise, config=size, retries=Retries(errors=0))
    assert told in error_of(run(step))


def test_what_a_step_prints_is_in_its_log_file(run: Runner, prefix: str) -> None:
    step = ExecutorStep(name="talk", fn=telling.talk, config={"output": this_output_path("x")})
    run(step, launcher="subprocess")
    log = log_of(prefix, step)
    for said in ("on standard output", "on standard error", "by native code", "by a logger"):
        assert f"said {said}\n" in log


def test_what_a_step_logs_in_the_drivers_process_is_in_its_log_file(run: Runner, prefix: str) -> None:
    step = ExecutorStep(name="talk", fn=telling.talk, config={"output": this_output_path("x")})
    run(step, launcher="driver")
    assert "WARNING talk: said by a logger\n" in log_of(prefix, step)


@both_launchers
def test_progress_is_stored(launcher: str, run: Runner, prefix: str) -> None:
    step = ExecutorStep(name="talk", fn=telling.talk, config={"output": this_output_path("x")})
    run(step, launcher=launcher)
    progress = StepFolder(prefix, build_graph([step]).nodes[0].folder_name).progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.unit, progress.note) == (3, 4, "words", "almost there")


def test_both_launchers_make_the_same(run: Runner, tmp_path: Path) -> None:
    made = []
    for launcher in ("driver", "subprocess"):
        steps = [*winds(), *squares_graph(5)]
        outcome = run(*steps, prefix=str(tmp_path / launcher), launcher=launcher)
        assert outcome.exit_code == 0, outcome_text(outcome, "")
        made.append([Path(outcome.path(handle)).read_text() for handle in (steps[2] / "wind.txt", steps[4] / "total")])
        shards = sorted(Path(outcome.path(steps[3] / "squares")).glob("*.txt"))
        made[-1] += [path.name + path.read_text() for path in shards]
    assert made[0] == made[1]
    assert made[0][:2] == ["1\n2\n3\n", "30"]


# -- how a run goes


def test_an_error_that_speaks_to_the_user_is_not_tried_again(run: Runner, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    step = ExecutorStep(name="plain", fn=telling.complain, config={"trace": str(trace)}, retries=Retries(errors=3))
    assert "found no wind; needed one. Wait." in error_of(run(step))
    assert trace.read_text() == "told\n"


def test_an_error_that_speaks_to_the_user_is_told_alone_and_has_its_traceback_in_the_records(
    run: Runner, tmp_path: Path
) -> None:
    step = ExecutorStep(name="plain", fn=telling.complain, config={"trace": str(tmp_path / "trace")})
    outcome = run(step)
    text = outcome_text(outcome, "")
    assert "    UserError: found no wind; needed one. Wait.\n" in text and "Traceback" not in text
    [failed] = outcome.of(Fate.FAILED)
    assert failed.error is not None and "in complain\n" in failed.error.traceback


def test_siblings_of_a_failed_step_go_on_and_the_cause_is_told_whole(run: Runner) -> None:
    bad, good = winds(levante=-1), winds(levante=4)
    outcome = run(bad[2], good[2])
    assert outcome.exit_code == 1
    assert {step.planned.node.step.config.force for step in outcome.of(Fate.DONE)} == {4, 2, 3}
    text = outcome_text(outcome, "")
    assert text.count("FAILED") == 1 and "FAILED winds/levante-" in text
    assert "in blow\n" in text and "ValueError: found force=-1; a wind cannot blow backwards" in text
    assert "holds back 2: winds/ponente-" in text
    assert text.splitlines()[-1] == "6 steps: 3 done, 1 failed, 2 held"


def test_a_second_run_runs_nothing(run: Runner) -> None:
    run(*winds())
    outcome = run(*winds())
    assert outcome_text(outcome, "") == "every step was a hit: 3 steps, nothing to run\n"


def test_a_path_is_given_only_where_there_is_a_result(run: Runner) -> None:
    steps = winds(ponente=-1)
    outcome = run(*steps)
    assert steps[0] in outcome and steps[1] not in outcome and steps[2] not in outcome
    with pytest.raises(UserError, match="'winds/ponente' has no result in this run"):
        outcome.path(steps[1])
    stranger = ExecutorStep(name="stranger", fn=telling.talk)
    assert stranger not in outcome
    with pytest.raises(UserError, match="'stranger' has no result"):
        outcome.path(stranger / "x")


@both_launchers
def test_as_many_steps_run_at_once_as_are_allowed(launcher: str, run: Runner, tmp_path: Path) -> None:
    where = tmp_path / "meeting"
    where.mkdir()
    steps = [
        ExecutorStep(name=f"guest-{who}", fn=telling.meet, config={"where": str(where), "who": who, "of": 3})
        for who in ("a", "b", "c")
    ]
    assert run(*steps, launcher=launcher, max_concurrent=3).exit_code == 0


@both_launchers
def test_no_more_steps_run_at_once_than_are_allowed(launcher: str, run: Runner, tmp_path: Path) -> None:
    book = tmp_path / "book"
    steps = [
        ExecutorStep(name=f"guest-{who}", fn=telling.queue_up, config={"book": str(book), "who": who}) for who in "abc"
    ]
    assert run(*steps, launcher=launcher, max_concurrent=1).exit_code == 0
    lines = book.read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["comes", "goes"] * 3
    assert [line.split()[0] for line in lines[::2]] == [line.split()[0] for line in lines[1::2]]


@pytest.mark.parametrize(
    "resources",
    [GpuConfig(gpu_count=1), TpuPodConfig(tpu_type="v4-8"), CpuOnly(num_cpus=10_000), CpuOnly(memory="900TB")],
    ids=repr,
)
def test_steps_that_do_not_fit_beside_each_other_take_turns(resources: Resources, run: Runner, tmp_path: Path) -> None:
    book = tmp_path / "book"
    steps = [
        ExecutorStep(
            name=f"guest-{who}", fn=telling.queue_up, config={"book": str(book), "who": who}, resources=resources
        )
        for who in "abc"
    ]
    assert run(*steps, max_concurrent=3).exit_code == 0
    lines = [line.split() for line in book.read_text().splitlines()]
    assert [word for _, word in lines] == ["comes", "goes"] * 3
    assert [who for who, _ in lines[::2]] == [who for who, _ in lines[1::2]]


# -- memory://


def test_memory_with_a_process_for_each_step_is_refused_at_start(memory_prefix: str) -> None:
    with pytest.raises(UserError, match=r"found prefix memory://.*which only this process sees.*use --launcher driver"):
        run_steps(winds(), ExecutorOptions(prefix=memory_prefix))
    assert volume_of(memory_prefix).names(memory_prefix) == []


def test_a_graph_with_a_sharded_map_runs_in_memory(memory_prefix: str) -> None:
    squares, total = squares_graph(6)
    options = ExecutorOptions(prefix=memory_prefix, launcher="driver")
    outcome = run_steps([total], options)
    assert outcome.exit_code == 0, outcome_text(outcome, "")
    volume = volume_of(memory_prefix)
    assert volume.read(outcome.path(total / "total")) == b"55"
    shards = outcome.path(squares / "squares")
    assert sorted(name for name in volume.names(shards) if not name.startswith(".")) == [
        f"{shard:05d}.txt" for shard in range(6)
    ]
    assert [step.state for step in plan_steps([total], options).steps] == [State.HIT, State.HIT]
    assert commit_of(memory_prefix, squares).summary == {"values": {"sum": 55}}


# -- scripts without the guard


UNGUARDED = """
from ponente.executor import ExecutorStep, executor_main

def act(config): ...

executor_main([ExecutorStep(name="s", fn=act)])
"""


def test_a_script_without_the_main_guard_fails_with_an_error_that_says_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), "--prefix", str(tmp_path / "p")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "executor_main was called while a step's process imported this script" in ended.stdout
    assert "put the call under `if __name__ == '__main__':`" in ended.stdout
    in_driver = subprocess.run([*command, "--launcher", "driver", "--force_run_failed"], capture_output=True, text=True)
    assert in_driver.returncode == 0, in_driver.stderr
