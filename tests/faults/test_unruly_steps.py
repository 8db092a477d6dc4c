"""Steps that crash, fail, are preempted or leave things behind: what is tried again, what goes on, what is told."""

import shutil
from pathlib import Path

import pytest
import unruly
from harness import Site, Sites

from ponente.executor import ExecutorStep
from ponente.executor.records import Claim, Commit, Outcome, Release

CRASHES = {"aborts": "SIGABRT", "reads-nowhere": "SIGSEGV", "unnamed-signal": "signal 39", "exits": "code 9"}
CRASH_STEPS = dict(zip(CRASHES, unruly.crashes, strict=True))


def only(*steps: ExecutorStep) -> list[str]:
    return ["--run_only", *(f"^{step.name}-" for step in steps)]


def test_a_crash_of_native_code_is_a_failed_step_whose_siblings_go_on(sites: Sites) -> None:
    site = sites("unruly")
    ended = site.run(*only(*unruly.crashes, unruly.good))
    assert ended.code == 1, ended
    assert site.published(unruly.good) == {"done.txt": b"done\n"}
    for name, cause in CRASHES.items():
        [release] = site.releases(CRASH_STEPS[name])
        assert (release.outcome, release.final) == (Outcome.FAILED, True), ended
        assert cause in release.error.message
        told = ended.out.partition(f"FAILED unruly/{name}-")[2].partition("records and log:")[0]
        assert cause in told, ended
    assert site.traces("executed-*") == {f"executed-{name}": 1 for name in sorted([*CRASHES, "good"])}


def test_exit_75_and_signals_that_end_a_process_are_preemption_and_tried_again_without_using_up_errors(
    sites: Sites,
) -> None:
    site = sites("unruly")
    ended = site.run(*only(*unruly.preempted), "--max_concurrent", "4")
    assert ended.code == 0, ended
    for step in unruly.preempted:
        assert [release.outcome for release in site.releases(step)] == [Outcome.PREEMPTED] * 3, step.name
        assert [type(entry) for entry in site.entries(step)] == [Claim, Release] * 3 + [Claim, Commit]
        assert site.published(step) == {"done.txt": b"done\n"}


def test_a_step_that_is_killed_every_time_is_given_up_when_its_preemptions_are_spent(sites: Sites) -> None:
    site = sites("unruly")
    ended = site.run(*only(unruly.killed_always))
    assert ended.code == 1, ended
    assert site.traces("executed-*") == {"executed-always-killed": 3}
    assert "SIGKILL" in ended.out


def test_an_exception_is_retried_as_often_as_the_step_says_and_its_dependents_are_held_back(sites: Sites) -> None:
    site = sites("unruly")
    ended = site.run(*only(unruly.grandchild))
    assert ended.code == 1, ended
    assert site.traces("executed-*") == {"executed-fails": 3, "executed-good": 1}
    assert [(one.outcome, one.final) for one in site.releases(unruly.fails)] == [
        (Outcome.FAILED, False),
        (Outcome.FAILED, False),
        (Outcome.FAILED, True),
    ]


def test_the_root_cause_is_told_whole_at_the_end_and_once_however_much_depends_on_it(sites: Sites) -> None:
    site = sites("unruly")
    ended = site.run(*only(unruly.grandchild, unruly.aborts))
    assert ended.code == 1, ended
    assert ended.out.count("FAILED ") == 2, ended
    told = ended.out.partition("FAILED unruly/fails-")[2]
    for part in ("in fail\n", "in _look_up\n", "KeyError: 'unknown'", "ValueError: the root of all trouble"):
        assert part in told, ended
    assert "holds back 2: unruly/child-" in told
    assert ended.out.endswith("4 steps: 1 done, 2 failed, 2 held\n") or "2 failed, 2 held" in ended.out.splitlines()[-1]


def executions(site: Site) -> int:
    return site.traces("executed-fails")["executed-fails"]


def test_a_failed_step_is_held_until_it_is_asked_for_or_its_source_file_changes(sites: Sites, tmp_path: Path) -> None:
    site = sites("unruly")
    site.script = Path(shutil.copy(site.script, tmp_path))
    shutil.copy(Path(unruly.__file__).with_name("traces.py"), tmp_path)
    target = ["--run_only", "^unruly/fails-"]
    assert site.run(*target).code == 1
    assert executions(site) == 3
    held = site.run(*target)
    assert held.code == 1, held
    assert executions(site) == 3
    assert "ValueError: the root of all trouble" in held.out
    assert "--force_run_failed tries again" in held.out
    assert site.run(*target, "--force_run_failed").code == 1
    assert executions(site) == 6
    site.script.write_text(site.script.read_text() + "\n# a remark\n")
    assert site.run(*target).code == 1
    assert executions(site) == 9
    assert site.run(*target).code == 1
    assert executions(site) == 9


def test_a_process_killed_before_it_could_claim_its_step_is_preempted_too(sites: Sites) -> None:
    site = sites("unruly")
    for number in range(3):
        site.leave(f"bomb-{number}")
    ended = site.run(*only(unruly.dies_early))
    assert ended.code == 0, ended
    assert not site.traces("bomb-*")
    assert site.traces("executed-*") == {"executed-dies-early": 1}


def test_a_process_that_cannot_even_start_fails_its_step(sites: Sites) -> None:
    site = sites("unruly")
    for number in range(9):
        site.leave(f"bomb-exit-{number}")
    ended = site.run(*only(unruly.dies_early, unruly.good))
    assert ended.code == 1, ended
    assert "exited with code 1 before it began" in ended.out
    assert site.published(unruly.good) == {"done.txt": b"done\n"}


@pytest.mark.parametrize("step", [unruly.forgetful, unruly.forgetful_and_killed], ids=lambda step: step.name)
def test_a_program_that_a_step_started_and_forgot_ends_with_the_step_and_holds_nothing_up(
    step: ExecutorStep, sites: Sites
) -> None:
    site = sites("unruly")
    ended = site.run(*only(step))
    assert ended.code == 0, ended
    site.expect_no_processes()
