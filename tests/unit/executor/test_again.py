"""Running again: from nothing, from what is there, and with what was set aside told; and what is refused beforehand."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sieve
from sieve import guess, guess_badly, take_none, take_two

from ponente.executor import ExecutorStep, UserError, executor_main
from ponente.executor.inquiry import Inquiry
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan, State
from ponente.executor.status import status_of

Runner = Callable[..., RunOutcome]
Planner = Callable[..., Plan]


def grains(outcome: RunOutcome, step: ExecutorStep) -> list[str]:
    return [path.read_text() for path in sorted(Path(outcome.path(step / "grains")).glob("*.txt"))]


def test_force_starts_from_nothing_although_every_shard_was_finished(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = sieve.sieve()
    first = run(step, max_concurrent=1)
    assert grains(first, step) == ["old"] * 3
    monkeypatch.setenv("SIEVE", "new")
    assert grains(run(step), step) == ["old"] * 3
    forced = run(step, force=["sieve"])
    assert grains(forced, step) == ["new"] * 3
    assert grains(run(step), step) == ["new"] * 3


def test_a_forced_run_that_is_cut_off_goes_on_from_its_own_state(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    step = sieve.sieve()
    run(step)
    monkeypatch.setenv("SIEVE", "new")
    monkeypatch.setenv("STONE", "2")
    assert run(step, force=["sieve"]).of(Fate.FAILED)
    monkeypatch.delenv("STONE")
    monkeypatch.setenv("SIEVE", "newest")
    assert grains(run(step), step) == ["old"] * 3  # the commit in force is still the first
    step_again = run(step, force=["sieve"])
    assert grains(step_again, step) == ["newest"] * 3


def test_a_failed_step_that_is_tried_again_keeps_its_finished_shards(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = sieve.sieve()
    monkeypatch.setenv("STONE", "2")  # the last to be taken: another was finished by then
    assert run(step).of(Fate.FAILED)
    monkeypatch.delenv("STONE")
    monkeypatch.setenv("SIEVE", "new")
    found = grains(run(step, force_run_failed=True), step)
    assert found[2] == "new" and "old" in found[:2]


def test_shards_that_were_set_aside_are_told_by_run_plan_status_and_why(
    run: Runner, plan: Planner, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = sieve.sieve(budget=1)
    monkeypatch.setenv("STONE", "1")
    with caplog.at_level(logging.INFO, logger="ponente"):
        logging.getLogger("ponente").propagate = True
        run(step)
    told = "1 of 3 grains set aside"
    assert any("done" in record.getMessage() and told in record.getMessage() for record in caplog.records)
    assert told in plan(step).steps[0].why
    assert told in str(status_of(prefix).steps[0])
    assert told in Inquiry(prefix).why("sieve")


@pytest.mark.parametrize("fn", [take_none, take_two])
def test_a_function_that_does_not_take_one_argument_is_refused_before_anything_runs(fn, plan: Planner) -> None:
    with pytest.raises(UserError, match="needed a function of one argument"):
        plan(ExecutorStep(name="x", fn=fn))


@pytest.mark.parametrize(("fn", "told"), [(guess, "raised KeyError"), (guess_badly, "needed an Estimate")])
def test_an_estimate_that_fails_names_its_step(fn, told: str, plan: Planner) -> None:
    with pytest.raises(UserError, match=f"step 'guessed' .*{told}"):
        plan(ExecutorStep(name="guessed", fn=fn))


def test_no_steps_are_refused_and_one_needs_no_list(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        executor_main(steps=[], argv=["--prefix", prefix])
    assert ended.value.code == 2
    assert "needed at least one" in capsys.readouterr().err
    executor_main(steps=sieve.sieve(), argv=["--prefix", prefix, "--dry-run"])
    assert "1 step: 0 hits, 1 to run" in capsys.readouterr().out


def test_values_of_env_must_be_texts_and_names_short_enough_for_a_folder() -> None:
    with pytest.raises(UserError, match="env 'A' with a value of type int"):
        ExecutorStep(name="x", fn=sieve.sift, env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="at most 200 bytes"):
        ExecutorStep(name="x" * 201, fn=sieve.sift)


def test_a_prefix_where_nothing_can_be_written_is_refused(run: Runner) -> None:
    with pytest.raises(UserError, match="where nothing can be written"):
        run(sieve.sieve(), prefix="/proc/ponente")


def test_a_pin_to_a_place_that_is_not_there_is_told_in_the_plan(plan: Planner, tmp_path: Path) -> None:
    pinned = ExecutorStep(name="x", fn=sieve.sift, override_output_path=str(tmp_path / "new"))
    planned = plan(pinned).steps[0]
    assert planned.state is State.RUN
    assert planned.why.endswith(f"its output goes to {tmp_path / 'new'}")


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_script_that_never_calls_executor_main_is_refused(command: str, tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("x = 1\n")
    ended = subprocess.run([sys.executable, "-m", "ponente", command, str(script)], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "ended without a call of executor_main" in ended.stderr
