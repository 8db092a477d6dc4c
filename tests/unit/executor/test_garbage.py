"""What `ponente gc` lists and removes, and what it never touches."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import winds as script
from winds import WindConfig, blow, winds

from ponente.executor import ExecutorStep, this_output_path, this_state_path
from ponente.executor.claim import take_claim
from ponente.executor.garbage import Kind, Survey, remove, survey
from ponente.executor.graph import build_graph
from ponente.executor.inquiry import Inquiry
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan, State
from ponente.executor.records import Commit, StepFolder
from ponente.executor.script import graphs_of_scripts
from ponente.store.volume import volume_of

Runner = Callable[..., RunOutcome]
DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class KeepingConfig:
    fails: bool = False
    state_path: str = this_state_path()


def keep(config: KeepingConfig) -> None:
    Path(config.state_path, "scratch").write_text("x" * 1000)
    if config.fails:
        raise ValueError("as asked")


def keeping(*, fails: bool = False) -> ExecutorStep:
    return ExecutorStep(name="keeping", fn=keep, config=KeepingConfig(fails=fails))


def folder(prefix: str, step: ExecutorStep) -> StepFolder:
    return StepFolder(prefix, build_graph([step]).node_of(step).folder_name)


def kinds(found: Survey) -> list[Kind]:
    return [one.kind for one in found.garbage]


def removed(found: Survey) -> list[str]:
    return [one.path for one in remove(found)]


def test_a_prefix_without_waste_has_none(run: Runner, prefix: str) -> None:
    run(*winds())
    found = survey(prefix, None, 0.0)
    assert (found.garbage, found.held, str(found)) == ([], [], "nothing to remove")
    assert survey(prefix, [build_graph(winds())], 0.0).garbage == []


def test_outputs_of_attempts_that_came_to_nothing_go(run: Runner, prefix: str) -> None:
    run(*winds(levante=-3), max_concurrent=1)
    step = folder(prefix, winds(levante=-3)[0])
    claims = [f"{step.path}/output-{number}" for number in (1, 3)]  # two tries, each released
    found = survey(prefix, None, DAY)
    assert [(one.kind, one.path) for one in found.garbage] == [(Kind.LOST, path) for path in claims]
    assert removed(found) == claims and not any(map(os.path.exists, claims))
    assert survey(prefix, None, DAY).garbage == []


def test_what_no_listed_experiment_reaches_goes_and_the_rest_stays(
    run: Runner, plan: Callable[..., Plan], prefix: str
) -> None:
    run(*winds())
    run(*winds(tramontana=9))
    found = survey(prefix, [build_graph(winds(tramontana=9))], DAY)
    old = folder(prefix, winds()[2])
    assert [(one.kind, one.path) for one in found.garbage] == [(Kind.UNREACHED, old.path)]
    assert found.size > 0
    assert removed(found) == [old.path] and not os.path.exists(f"{old.path}/output-1")
    assert survey(prefix, [build_graph(winds(tramontana=9))], DAY).garbage == []
    assert [step.state for step in plan(*winds(tramontana=9)).steps] == [State.HIT] * 3
    assert [step.state for step in plan(*winds()).steps] == [State.HIT, State.HIT, State.RUN]
    assert run(*winds()).exit_code == 0


def test_what_was_adopted_is_reached(run: Runner, prefix: str) -> None:
    run(*winds())
    changed = winds(tramontana=9)
    Inquiry(prefix, build_graph(changed)).adopt(
        folder(prefix, winds()[2]).path, folder(prefix, changed[2]).name, "the same to us"
    )
    assert survey(prefix, [build_graph(changed)], 0.0).garbage == []


def test_state_that_nothing_was_kept_of_goes_when_it_is_old(
    run: Runner, plan: Callable[..., Plan], prefix: str
) -> None:
    run(keeping())
    assert survey(prefix, None, DAY).garbage == []
    found = survey(prefix, None, 0.0)
    assert kinds(found) == [Kind.STATE] and found.size == 1000
    assert removed(found) == [f"{folder(prefix, keeping()).path}/state"]
    assert plan(keeping()).steps[0].state is State.HIT  # its output is there
    assert survey(prefix, None, 0.0).garbage == []


def test_a_failed_step_may_go_on_from_its_state_until_it_is_old(run: Runner, prefix: str) -> None:
    run(keeping(fails=True))
    assert Kind.STATE not in kinds(survey(prefix, None, DAY))
    assert Kind.STATE in kinds(survey(prefix, None, 0.0))


def test_nothing_but_lost_attempts_goes_while_a_claim_is_alive(run: Runner, prefix: str) -> None:
    run(*winds())
    run(keeping())
    run(*winds(levante=-3), max_concurrent=1)
    [other] = [folder(prefix, ExecutorStep(name="winds/levante", fn=blow, config=WindConfig(force=-3)))]
    assert other.path == folder(prefix, winds(levante=-3)[0]).path
    assert take_claim(other, other.view().number, "another-run") is not None
    found = survey(prefix, [build_graph([keeping()])], 0.0)
    assert len(found.held) == 1 and "another-run" in found.held[0]
    assert {Kind.LOST, Kind.STATE, Kind.UNREACHED} == set(kinds(found))
    gone = removed(found)
    assert gone and all("/output-" in path for path in gone)
    assert not os.path.exists(f"{other.path}/output-1")
    assert os.path.isdir(folder(prefix, winds()[0]).path)


def test_the_output_that_a_living_process_writes_is_no_waste(run: Runner, prefix: str) -> None:
    run(*winds(levante=-3), max_concurrent=1)
    step = folder(prefix, winds(levante=-3)[0])
    tenure = take_claim(step, step.view().number, "another-run")
    assert tenure is not None
    os.makedirs(step.output(tenure.number))
    assert step.output(tenure.number) not in [one.path for one in survey(prefix, None, 0.0).garbage]


def test_a_removal_that_was_cut_off_is_finished_by_the_next(
    run: Runner, plan: Callable[..., Plan], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*winds())
    volume = type(volume_of(prefix))
    monkeypatch.setattr(volume, "remove", _cut_off)
    with pytest.raises(KeyboardInterrupt):
        removed(survey(prefix, [build_graph([keeping()])], DAY))
    monkeypatch.undo()
    assert plan(*winds()).steps[0].state is State.RUN  # nobody takes what is left of it for a result
    assert len(removed(survey(prefix, [build_graph([keeping()])], DAY))) == 3
    assert run(*winds()).exit_code == 0


def _cut_off(volume: Any, path: str) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_reached", [True, False])
def test_the_remains_of_a_removal_that_was_killed_go_a_day_later(
    run: Runner, prefix: str, is_reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*winds())
    step = folder(prefix, winds()[0])
    keep = [build_graph(winds() if is_reached else winds()[1:])]
    remains = Path(step.path, ".part-0123456789ab")
    (remains / "below").mkdir(parents=True)
    (remains / "below" / "file").write_text("x" * 100)
    os.utime(remains / "below" / "file", (1000, 1000))  # as what was unpacked there would say
    assert Kind.REMAINS not in kinds(survey(prefix, keep, 0.0))  # somebody may be at it
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    found = survey(prefix, keep, 9 * DAY)
    [one] = [one for one in found.garbage if one.kind is Kind.REMAINS]
    assert (one.path, one.size) == (str(remains), 100)
    assert str(remains) in removed(found) and not remains.exists()


def test_a_step_that_failed_for_good_stays_so_without_its_old_state(
    run: Runner, plan: Callable[..., Plan], prefix: str
) -> None:
    run(keeping(fails=True))
    assert plan(keeping(fails=True)).steps[0].state is State.HELD
    assert f"{folder(prefix, keeping(fails=True)).path}/state" in removed(survey(prefix, None, 0.0))
    assert plan(keeping(fails=True)).steps[0].state is State.HELD


def test_state_that_was_written_lately_is_kept_however_long_ago_its_claim_was(
    run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(keeping())
    state = Path(folder(prefix, keeping()).path, "state", "scratch")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * DAY)
    os.utime(state, (now + 8 * DAY, now + 8 * DAY))
    assert survey(prefix, None, 7 * DAY).garbage == []


def test_a_holder_that_was_silent_for_a_day_is_none(run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*winds())
    step = folder(prefix, winds()[0])
    assert take_claim(step, step.view().number, "another-run") is not None
    assert survey(prefix, None, DAY).held
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    assert not survey(prefix, None, DAY).held


def test_what_is_watched_and_what_is_pinned_to_is_reached(run: Runner, prefix: str) -> None:
    run(*winds())
    watching = ExecutorStep(name="watching", fn=blow, config=WindConfig(source=winds()[0].nonblocking()))
    pinned = ExecutorStep(
        name="pinned", fn=blow, config=WindConfig(force=4), override_output_path=folder(prefix, winds()[1]).name
    )
    kept = {one.path for one in survey(prefix, [build_graph([watching, pinned])], DAY).garbage}
    assert kept == {folder(prefix, winds()[2]).path}


def test_the_command_lists_and_only_with_delete_removes(run: Runner, prefix: str) -> None:
    run(*winds(levante=5))
    run(*winds())
    arguments = ["gc", "--prefix", prefix, "--keep", script.__file__]
    listed = _ponente(*arguments)
    assert listed.count("not reached") == 3 and "nothing was removed; --delete does it" in listed
    assert _ponente(*arguments, "--delete").endswith("3 folders removed\n")
    assert _ponente(*arguments) == "nothing to remove\n"


def _ponente(*arguments: str) -> str:
    command = [sys.executable, "-m", "ponente", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_times_are_counted_from_the_last_entry(run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(keeping())
    now: Any = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * DAY)
    assert kinds(survey(prefix, None, 7 * DAY)) == [Kind.STATE]
    assert json.dumps(survey(prefix, None, 9 * DAY).held) == "[]" and not survey(prefix, None, 9 * DAY).garbage


def test_a_driver_does_not_take_a_removed_result_for_news(run: Runner, plan: Callable[..., Plan], prefix: str) -> None:
    run(*winds())
    made = plan(*winds())
    removed(survey(prefix, [build_graph([keeping()])], DAY))
    again = plan(*winds())
    assert {step.state for step in made.steps} == {State.HIT}
    assert {step.state for step in again.steps} == {State.RUN}
    step = folder(prefix, winds()[0])
    entry = step.view().entry
    assert isinstance(entry, Commit) and entry.removed
    outcome = run(*winds())
    assert [one.fate for one in outcome.steps] == [Fate.DONE] * 3
    assert survey(prefix, None, 0.0).garbage == []


def test_state_that_was_committed_since_the_survey_stays(run: Runner, prefix: str) -> None:
    run(keeping())
    found = survey(prefix, None, 0.0)
    assert kinds(found) == [Kind.STATE]
    step = folder(prefix, keeping())
    commit = step.last_commit(step.view())
    assert commit is not None
    tenure = take_claim(step, step.view().number, "another-run")
    assert tenure is not None
    tenure.end(msgspec.structs.replace(commit, objects={"scratch": f"{step.name}/state/scratch"}))
    assert removed(found) == [] and os.path.exists(f"{step.path}/state/scratch")


@dataclass(frozen=True, kw_only=True)
class SaltConfig:
    grains: int
    output_path: str = this_output_path("salt.txt")


def strew(config: SaltConfig) -> None:
    volume_of(config.output_path).replace(config.output_path, b"x" * abs(config.grains))
    if config.grains < 0:
        raise ValueError("as asked")


def test_in_a_bucket_the_same_goes_and_the_same_stays(run: Runner, bucket: str) -> None:
    prefix = f"{bucket}/runs"
    steps = [ExecutorStep(name=f"salt/{grains}", fn=strew, config=SaltConfig(grains=grains)) for grains in (-7, 7, 70)]
    failing, dropped, kept = (folder(prefix, step) for step in steps)
    run(*steps, prefix=prefix)
    assert [(one.kind, one.size) for one in survey(prefix, None, 0.0).garbage] == [(Kind.LOST, 7)] * 2
    found = survey(prefix, [build_graph([steps[2]])], 0.0)
    assert {one.path for one in found.garbage} == {failing.path, dropped.path}
    assert set(removed(found)) == {failing.path, dropped.path}
    left = [name for one in (failing, dropped) for name in volume_of(prefix).names(one.path)]
    assert not [name for name in left if name.startswith("output-")]
    assert survey(prefix, [build_graph([steps[2]])], 0.0).garbage == []
    assert volume_of(prefix).read(f"{kept.path}/output-1/salt.txt") == b"x" * 70


def test_scripts_beside_each_other_have_modules_of_their_own(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "common.py").write_text(f"NAME = 'step{number}'\n")
        (tmp_path / str(number) / "run.py").write_text(
            "import common, shutil\nfrom ponente.executor import ExecutorStep, executor_main\n"
            "def nothing(config):\n    pass\n"
            "if __name__ == '__main__':\n    executor_main([ExecutorStep(name=common.NAME, fn=nothing)])\n"
        )
    graphs = graphs_of_scripts([str(tmp_path / str(number) / "run.py") for number in (1, 2)])
    assert [graph.nodes[0].name for graph in graphs] == ["step1", "step2"]
