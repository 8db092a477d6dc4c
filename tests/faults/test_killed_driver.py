"""A driver that is killed at any moment, alone or beside another, loses only the work in flight.

A run of the diamond is timed once, undisturbed. Then drivers are killed at moments spread over that whole time, each
in a fresh prefix; after each kill everything that a reader may see is compared with the undisturbed run.
"""

import random
import time
from pathlib import Path

import diamond
import pytest
from harness import Ended, Reference, Site, Sites, expect_whole_records, note, seeds

from ponente.executor.manifest import Runs

KILLS = seeds(20, soak=100)
TUTORIAL = Path(__file__).parents[2] / "experiments" / "tutorials" / "word_count.py"
MAX_KILLS = 12  # of one prefix, where it is killed again and again


def run_and_kill(site: Site, moment: float, reference: Reference) -> Ended | None:
    """Runs the diamond and kills its driver after so many seconds; what it says if it has ended before."""
    print(f"killing after {moment:.3f} of {reference.seconds:.3f} s")
    program = site.start()
    deadline = time.monotonic() + moment
    while time.monotonic() < deadline and not program.has_ended():
        time.sleep(0.002)
    if program.has_ended():
        return program.wait()
    program.kill()
    program.wait()
    site.expect_no_processes()
    done = site.expect_only_whole_results(diamond.joined, reference.outputs)
    note("driver killed", phase=phase_of(site, done), seconds=round(moment, 3))
    return None


def phase_of(site: Site, done: int) -> str:
    """Where a killed driver was, in words."""
    if done == len(diamond.STEPS):
        return "all committed"
    if done or any(site.claims(step) for step in diamond.STEPS):
        return f"{done} of {len(diamond.STEPS)} committed"
    return "recorded, nothing claimed" if Runs(str(site.prefix)).names() else "before its records"


def expect_done(site: Site, ended: Ended, reference: Reference) -> None:
    assert ended.code == 0, ended
    assert site.expect_only_whole_results(diamond.joined, reference.outputs) == len(diamond.STEPS)


@pytest.mark.parametrize("seed", KILLS)
def test_a_driver_killed_at_any_moment_goes_on_to_the_outputs_of_an_undisturbed_run(
    seed: int, sites: Sites, undisturbed: Reference
) -> None:
    site = sites("diamond")
    moment = (seed + random.Random(seed).random()) / len(KILLS) * undisturbed.seconds
    ended = run_and_kill(site, moment, undisturbed) or site.run()
    expect_done(site, ended, undisturbed)


@pytest.mark.parametrize("seed", seeds(2, soak=15))
def test_a_driver_killed_again_and_again_gets_there_with_the_outputs_of_an_undisturbed_run(
    seed: int, sites: Sites, undisturbed: Reference
) -> None:
    site = sites("diamond")
    draw = random.Random(1000 + seed)
    for _ in range(MAX_KILLS):
        if ended := run_and_kill(site, draw.uniform(0.2, 1.0) * undisturbed.seconds, undisturbed):
            break
    else:
        ended = site.run()
    expect_done(site, ended, undisturbed)


@pytest.mark.parametrize("seed", seeds(2, soak=15))
def test_two_drivers_that_are_killed_again_and_again_on_one_prefix_get_there_with_the_same_outputs(
    seed: int, sites: Sites, undisturbed: Reference
) -> None:
    site = sites("diamond")
    draw = random.Random(5000 + seed)
    for _ in range(3):
        programs = [site.start(), site.start()]
        for program in draw.sample(programs, 2):
            time.sleep(draw.uniform(0.0, 0.6) * undisturbed.seconds)
            program.kill()
            program.wait()
        site.expect_no_processes()
        done = site.expect_only_whole_results(diamond.joined, undisturbed.outputs)
        note("both drivers killed", phase=phase_of(site, done))
    programs = [site.start(), site.start()]
    for program in programs:
        expect_done(site, program.wait(), undisturbed)


@pytest.mark.parametrize("launcher", ["subprocess", "driver"])
def test_steps_and_workers_that_would_never_end_do_so_when_their_driver_is_killed(launcher: str, sites: Sites) -> None:
    site = sites("stoppable")
    program = site.start("--launcher", launcher, "--max_concurrent", "2")
    if launcher == "driver":  # its steps are threads, and die with it; the worker is a process
        site.await_trace("began-worker")
    else:
        site.await_trace("began-plain")
        site.await_trace("began-worker")
    assert len(site.processes()) > 1
    program.kill()
    program.wait()
    site.expect_no_processes()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_the_tutorial_killed_at_any_moment_goes_on_to_its_report(seed: int, root: Path) -> None:
    site = Site(TUTORIAL, root / "site")
    program = site.start()
    time.sleep(random.Random(6000 + seed).uniform(0.2, 2.0))
    program.kill()
    program.wait()
    site.expect_no_processes()
    expect_whole_records(site.prefix)
    note("driver of the tutorial killed", phase="anywhere")
    ended = site.run()
    assert ended.code == 0, ended
    assert "194,238 words, 12,607 different" in ended.out
