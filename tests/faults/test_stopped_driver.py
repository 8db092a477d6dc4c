"""Ctrl-C and SIGTERM: everything ends, the logs say that it was stopped, and the same command goes on."""

import random
import signal
import time

import diamond
import pytest
import stoppable
from harness import Program, Reference, Site, Sites, note, seeds, wait_until

from ponente.cluster.launch import OnExit, Running, Task
from ponente.executor import ExecutorOptions, plan_steps
from ponente.executor.manifest import Runs
from ponente.executor.records import Claim, Outcome, Release
from ponente.executor.run import Driver
from ponente.store.redaction import Redactor

CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}
SIDES = [stoppable.plain, stoppable.mapped]
FLAGS = ["--run_only", "stoppable/joined", "--max_concurrent", "2"]


def stop(program: Program, how: str) -> int:
    """Stops a driver; returns the exit code that it should have."""
    if how == "Ctrl-C in a terminal":
        program.kill_group(signal.SIGINT)
        return CODES[signal.SIGINT]
    number = signal.Signals[how]
    program.kill(number)
    return CODES[number]


def start_both_sides(site: Site) -> Program:
    program = site.start(*FLAGS)
    site.await_trace("began-plain")
    site.await_trace("began-worker")
    return program


@pytest.mark.parametrize("how", ["Ctrl-C in a terminal", "SIGINT", "SIGTERM"])
def test_a_stopped_driver_ends_its_steps_releases_them_and_goes_on_when_asked_again(how: str, sites: Sites) -> None:
    site = sites("stoppable")
    program = start_both_sides(site)
    code = stop(program, how)
    ended = program.wait()
    assert ended.code == code, ended
    site.expect_no_processes()
    for step in SIDES:
        claim, release = site.entries(step)
        assert isinstance(claim, Claim)
        assert isinstance(release, Release)
        assert (release.outcome, release.final) == (Outcome.PREEMPTED, False), ended
    assert site.entries(stoppable.joined) == []
    assert "the same command goes on" in ended.out
    [run] = Runs(str(site.prefix)).names()
    assert Runs(str(site.prefix)).result(run).exit_code == code
    site.leave("go")
    ended = site.run(*FLAGS)
    assert ended.code == 0, ended
    assert site.published(stoppable.joined) == {"done.txt": b"joined\n"}
    assert site.traces("shard-*") == {"shard-1": 1, "shard-2": 1, "shard-3": 2, "shard-4": 1}


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_driver_that_is_stopped_inside_a_step_releases_it_and_goes_on_when_asked_again(
    how: str, sites: Sites
) -> None:
    site = sites("stoppable")
    program = site.start("--run_only", "stoppable/plain", "--launcher", "driver")
    site.await_trace("began-plain")
    code = stop(program, how)
    ended = program.wait()
    assert ended.code == code, ended
    assert [release.final for release in site.releases(stoppable.plain)] == [False], ended
    site.leave("go")
    ended = site.run("--run_only", "stoppable/plain", "--launcher", "driver")
    assert ended.code == 0, ended
    assert site.published(stoppable.plain) == {"done.txt": b"plain\n"}


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_driver_that_is_stopped_while_it_makes_its_plan_says_so_and_goes_on_when_asked_again(
    how: str, sites: Sites
) -> None:
    site = sites("stoppable")
    site.leave(f"bomb-{how}")
    site.leave("go")
    ended = site.run(*FLAGS)
    assert ended.code == CODES[signal.Signals[how]], ended
    assert "the same command goes on" in ended.err
    assert "Traceback" not in ended.err
    ended = site.run(*FLAGS)
    assert ended.code == 0, ended


def test_a_step_without_preemptions_to_spare_goes_on_after_its_driver_was_stopped(sites: Sites) -> None:
    site = sites("stoppable")
    flags = ["--run_only", "stoppable/fragile"]
    program = site.start(*flags)
    site.await_trace("began-fragile")
    program.kill(signal.SIGTERM)
    assert program.wait().code == 75
    site.leave("go")
    ended = site.run(*flags)
    assert ended.code == 0, ended


def test_however_often_a_driver_is_stopped_its_step_goes_on(sites: Sites) -> None:
    site = sites("stoppable")
    flags = ["--run_only", "stoppable/plain", "--launcher", "driver"]
    for number in range(stoppable.plain.retries.preemptions + 2):
        program = site.start(*flags)
        wait_until(lambda: site.traces("began-plain").get("began-plain") == number + 1, f"attempt {number} began")
        program.kill(signal.SIGTERM)
        ended = program.wait()
        assert ended.code == 75, ended
    assert not any(release.final for release in site.releases(stoppable.plain))
    site.leave("go")
    ended = site.run(*flags)
    assert ended.code == 0, ended


class InterruptedLauncher:
    """Ctrl-C comes while it starts a task."""

    finds_room = False

    def start(self, task: Task, on_exit: OnExit) -> Running:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_step_is_started_waits_for_nobody(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponente.executor.run._STOP_GRACE_SECONDS", 3600.0)
    site = sites("stoppable")
    plan = plan_steps([stoppable.plain], ExecutorOptions(prefix=str(site.prefix)))
    outcome = Driver(plan, InterruptedLauncher(), Redactor(), run="first", max_concurrent=1).run()
    assert outcome.exit_code == 130
    assert site.entries(stoppable.plain) == []


@pytest.mark.parametrize("seed", seeds(5, soak=40))
def test_a_driver_stopped_at_any_moment_goes_on_to_the_outputs_of_an_undisturbed_run(
    seed: int, sites: Sites, undisturbed: Reference
) -> None:
    site = sites("diamond")
    number = (signal.SIGINT, signal.SIGTERM)[seed % 2]
    moment = random.Random(2000 + seed).random() * undisturbed.seconds
    print(f"{number.name} after {moment:.3f} of {undisturbed.seconds:.3f} s")
    program = site.start()
    time.sleep(moment)
    program.kill(number)
    ended = program.wait()
    site.expect_no_processes()
    done = site.expect_only_whole_results(diamond.joined, undisturbed.outputs)
    note(f"driver stopped by {number.name}", phase=f"{done} of {len(diamond.STEPS)} committed")
    begun = bool(Runs(str(site.prefix)).names())
    if begun and done < len(diamond.STEPS):  # else Python itself was starting or ending
        assert ended.code == CODES[number], ended
    assert not any(release.final for step in diamond.STEPS for release in site.releases(step))
    ended = site.run()
    assert ended.code == 0, ended
    assert site.expect_only_whole_results(diamond.joined, undisturbed.outputs) == len(diamond.STEPS)
