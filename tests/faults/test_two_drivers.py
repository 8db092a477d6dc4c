"""Two drivers on one prefix: each step is executed and committed once, and nobody waits longer than needed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pair
import pytest
from harness import Site, Sites, note, seeds, wait_until

from ponente.cluster.process import this_process
from ponente.executor.claim import Tenure
from ponente.executor.records import Claim, ErrorNote, Outcome, Release

ROUNDS = len(seeds(50, soak=200))


def expect_each_step_once(site: Site) -> None:
    assert site.traces("executed-*") == {f"executed-{name}": 1 for name in ("bottom", "left", "right", "top")}
    for step in pair.STEPS:
        assert len(site.commits(step)) == 1, site.entries(step)
        assert len(site.claims(step)) == 1, site.entries(step)
    [text] = site.published(pair.bottom).values()
    for step in (pair.left, pair.right):
        [above] = site.published(step).values()
        assert above in text, "a child read something else than what is committed"


@contextmanager
def in_process_driver() -> Iterator[subprocess.Popen[str]]:
    script = Path(pair.__file__).with_name("pair_rounds.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(script)], text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()
            process.kill()


def test_two_drivers_that_race_for_every_step_execute_and_commit_each_once(sites: Sites) -> None:
    with in_process_driver() as first, in_process_driver() as second:
        for number in range(ROUNDS):
            site = sites("pair", f"round-{number}")
            for driver in (first, second):
                driver.stdin.write(f"{site.prefix} {site.trace}\n")
            for driver in (first, second):
                driver.stdin.flush()
            codes = [driver.stdout.readline() for driver in (first, second)]
            assert codes == ["0\n", "0\n"], f"round {number}"
            expect_each_step_once(site)
            note("two drivers", phase="in their own processes")


@pytest.mark.parametrize("round", seeds(3, soak=20))
def test_two_drivers_whose_steps_have_their_own_processes_execute_and_commit_each_once(
    round: int, sites: Sites
) -> None:
    site = sites("pair")
    programs = [site.start(), site.start()]
    for program in programs:
        ended = program.wait()
        assert ended.code == 0, ended
    expect_each_step_once(site)
    note("two drivers", phase="a process a step")


def hold(site: Site, step: object) -> Tenure:
    """Claims a step as a driver that is alive and promises to be heard in an hour."""
    claim = Claim(holder=this_process(), run="another", time=0.0, heartbeat_seconds=3600.0)
    folder = site.folder(step)
    assert folder.append(0, claim)
    return Tenure(folder, 1, claim)


@pytest.mark.parametrize("launcher", ["subprocess", "driver"])
def test_a_step_that_another_driver_holds_keeps_no_other_step_from_being_launched(launcher: str, sites: Sites) -> None:
    site = sites("pair")
    top = site.run("--run_only", "pair/top", "--launcher", launcher)
    assert top.code == 0, top
    held = hold(site, pair.left)
    program = site.start("--launcher", launcher, "--max_concurrent", "1")
    wait_until(lambda: site.commits(pair.right), "the free sibling was committed")
    assert not program.has_ended()
    assert not site.claims(pair.bottom)
    held.end(Release(outcome=Outcome.PREEMPTED, run="another", time=0.0, final=False, error=ErrorNote("Gone", "")))
    ended = program.wait()
    assert ended.code == 0, ended
    assert site.traces("executed-*") == {f"executed-{name}": 1 for name in ("bottom", "left", "right", "top")}
    assert f"waiting for process {os.getpid()} of run another" in ended.err
