"""Who holds a step, who may take it over, and that a holder who lost it cannot commit, however late it wakes up."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import patient
import pytest
from harness import Site, Sites, entries, note, seeds, wait_until

from ponente.cluster.launch import OnExit, Running, SubprocessLauncher, Task
from ponente.cluster.process import ProcessName, this_process
from ponente.executor import ExecutorOptions, plan_steps
from ponente.executor.attempt import CLAIMED_EXIT, DONE_EXIT
from ponente.executor.claim import HEART, LostClaimError, Tenure, Watcher, take_claim
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.records import Claim, Commit, ErrorNote, Outcome, Release, StepFolder
from ponente.executor.run import Driver
from ponente.store.redaction import Redactor
from ponente.store.volume import LocalVolume, register_volume

COMMIT = Commit(identity="0" * 64, output="output-1", run="first", time=0.0)
RELEASE = Release(outcome=Outcome.PREEMPTED, run="first", time=0.0, final=False, error=ErrorNote("Gone", ""))


@pytest.fixture
def folder(tmp_path: Path) -> StepFolder:
    return StepFolder(str(tmp_path), "step-00000000")


# -- a whole step that is stopped and goes on too late


class NotingLauncher:
    """Starts tasks in processes of their own, and notes with which codes they end."""

    finds_room = False

    def __init__(self) -> None:
        self.codes: list[int] = []
        self._inner = SubprocessLauncher(Redactor())

    def start(self, task: Task, on_exit: OnExit) -> Running:
        def ended(code: int) -> None:
            self.codes.append(code)
            on_exit(code)

        return self._inner.start(task, ended)


@dataclass(frozen=True)
class Drive:
    """A driver at work in a thread."""

    launcher: NotingLauncher
    outcome: Future[RunOutcome]


@pytest.fixture
def drive(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Site, str], Drive]]:
    """Starts drivers of the patient step."""
    with ThreadPoolExecutor() as threads:

        def start(site: Site, run: str) -> Drive:
            site.adopt(monkeypatch)
            launcher = NotingLauncher()
            plan = plan_steps([patient.patient], ExecutorOptions(prefix=str(site.prefix)))
            driver = Driver(plan, launcher, Redactor(), run=run, max_concurrent=1)
            return Drive(launcher, threads.submit(driver.run))

        yield start


@pytest.mark.parametrize("round", seeds(1, soak=10))
def test_a_step_that_is_stopped_past_its_expiry_wakes_up_to_a_lost_claim_and_commits_nothing(
    round: int, sites: Sites, drive: Callable[[Site, str], Drive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONENTE_HEARTBEAT_SECONDS", "0.1")
    site = sites("patient")
    first = drive(site, "first")
    wait_until(lambda: site.traces("began-*"), "the first holder began")
    [claim] = site.claims(patient.patient)
    os.killpg(claim.holder.pid, signal.SIGSTOP)
    try:
        second = drive(site, "second")
        wait_until(lambda: len(site.traces("began-*")) == 2, "the second holder took over")
        site.leave("go")
        assert second.outcome.result().exit_code == 0
        assert second.launcher.codes == [DONE_EXIT]
        published = site.published(patient.patient)
    finally:
        os.killpg(claim.holder.pid, signal.SIGCONT)
    outcome = first.outcome.result()
    assert first.launcher.codes == [CLAIMED_EXIT]
    assert outcome.exit_code == 0
    assert len(outcome.of(Fate.DONE)) + len(outcome.of(Fate.HIT)) == 1
    old, new, commit = site.entries(patient.patient)
    assert isinstance(old, Claim)
    assert isinstance(new, Claim)
    assert isinstance(commit, Commit)
    assert (old.run, new.run, commit.run) == ("first", "second", "second")
    assert published == {"made_by.txt": str(new.holder.pid).encode()}
    assert site.published(patient.patient) == published
    assert "lost_claim" in [event["kind"] for event in site.folder(patient.patient).events()]
    note("step stopped past its expiry", phase="before its commit")


class OutrunLauncher(NotingLauncher):
    """Lets another driver's process claim the step, and die, just before the first task starts."""

    def __init__(self, folder: StepFolder) -> None:
        super().__init__()
        self._folder = folder

    def start(self, task: Task, on_exit: OnExit) -> Running:
        if self._folder.log.last_number() == 0:
            claim_of(self._folder, dead_process())
        return super().start(task, on_exit)


def test_a_step_lost_to_a_process_that_died_is_taken_over_and_not_blamed(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites("patient")
    site.adopt(monkeypatch)
    site.leave("go")
    launcher = OutrunLauncher(site.folder(patient.patient))
    plan = plan_steps([patient.patient], ExecutorOptions(prefix=str(site.prefix)))
    outcome = Driver(plan, launcher, Redactor(), run="second", max_concurrent=1).run()
    assert launcher.codes == [CLAIMED_EXIT, DONE_EXIT]
    assert outcome.exit_code == 0
    assert [(type(entry), entry.run) for entry in site.entries(patient.patient)] == [
        (Claim, "first"),
        (Claim, "second"),
        (Commit, "second"),
    ]


# -- claims


def test_a_holder_cannot_commit_or_release_after_a_takeover(folder: StepFolder) -> None:
    first = take_claim(folder, 0, "first")
    second = take_claim(folder, 1, "second")
    assert first is not None
    assert second is not None
    for entry in (COMMIT, RELEASE):
        with pytest.raises(LostClaimError, match="taken over"):
            first.end(entry)
    assert not first.is_held()
    second.end(replace_run(COMMIT, "second"))
    assert [type(entry) for entry in entries(folder)] == [Claim, Claim, Commit]
    assert folder.last_commit(folder.view()) == replace_run(COMMIT, "second")


def replace_run(commit: Commit, run: str) -> Commit:
    return msgspec.structs.replace(commit, run=run)


def test_of_two_that_claim_after_the_same_entry_one_gets_it(folder: StepFolder) -> None:
    assert take_claim(folder, 0, "first") is not None
    assert take_claim(folder, 0, "second") is None
    assert [entry.run for entry in entries(folder)] == ["first"]


def test_a_fork_of_the_holder_cannot_end_its_claim(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os
            from ponente.executor.claim import LostClaimError, take_claim
            from ponente.executor.records import Commit, StepFolder

            tenure = take_claim(StepFolder({str(tmp_path)!r}, "step-00000000"), 0, "first")
            commit = Commit(identity="0", output="output-1", run="first", time=0.0)
            if child := os.fork():
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, "the fork was not refused"
                tenure.end(commit)
            else:
                try:
                    tenure.end(commit)
                except LostClaimError:
                    os._exit(7)
                os._exit(0)
            """
        )
    )
    subprocess.run([sys.executable, str(script)], check=True)
    assert [type(entry) for entry in entries(StepFolder(str(tmp_path), "step-00000000"))] == [Claim, Commit]


def test_an_error_of_the_store_stops_no_later_heartbeat(folder: StepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONENTE_HEARTBEAT_SECONDS", "0.01")
    failing = FailingVolume(failures=3)
    register_volume("file", lambda: failing)
    try:
        tenure = take_claim(folder, 0, "first")
        assert tenure is not None
        heartbeat = Path(folder.heartbeat(tenure.number))
        HEART.add(tenure)
        try:
            wait_until(heartbeat.exists, "a heartbeat was written after three that failed")
            before = heartbeat.read_bytes()
            wait_until(lambda: heartbeat.read_bytes() != before, "heartbeats went on")
        finally:
            HEART.remove(tenure)
        assert failing.failures == 0
    finally:
        register_volume("file", LocalVolume)


class FailingVolume(LocalVolume):
    """A disk that fails the first few replacements."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def replace(self, path: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        super().replace(path, data)


# -- watchers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The watcher's own clock, set by the test."""
    moment = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("ponente.executor.claim.time", SimpleNamespace(monotonic=lambda: moment.now, time=lambda: 0.0))
    return moment


def elsewhere(**changes: object) -> ProcessName:
    return msgspec.structs.replace(this_process(), **{"host": "another host", **changes})


def claim_of(folder: StepFolder, holder: ProcessName, *, time: float = 0.0, heartbeat_seconds: float = 5.0) -> Tenure:
    claim = Claim(holder=holder, run="first", time=time, heartbeat_seconds=heartbeat_seconds)
    number = folder.log.last_number()
    assert folder.append(number, claim)
    return Tenure(folder, number + 1, claim)


@pytest.mark.parametrize("written", [0.0, 1e12, -1e12], ids=["1970", "far future", "far past"])
def test_a_claim_expires_by_the_watchers_own_clock_whatever_time_it_carries(
    written: float, folder: StepFolder, clock: SimpleNamespace
) -> None:
    tenure = claim_of(folder, elsewhere(), time=written)
    watcher = Watcher()
    assert not watcher.is_dead(folder, folder.view())
    clock.now += 59
    assert not watcher.is_dead(folder, folder.view())
    tenure.beat()
    assert not watcher.is_dead(folder, folder.view())
    clock.now += 59
    assert not watcher.is_dead(folder, folder.view())
    clock.now += 2
    assert watcher.is_dead(folder, folder.view())


def test_a_watcher_that_has_just_come_grants_a_silent_claim_its_whole_time(
    folder: StepFolder, clock: SimpleNamespace
) -> None:
    claim_of(folder, elsewhere())
    old, new = Watcher(), Watcher()
    assert not old.is_dead(folder, folder.view())
    clock.now += 61
    assert old.is_dead(folder, folder.view())
    assert not new.is_dead(folder, folder.view())


def test_a_new_claim_is_not_judged_by_the_silence_of_the_one_before(folder: StepFolder, clock: SimpleNamespace) -> None:
    claim_of(folder, elsewhere())
    watcher = Watcher()
    assert not watcher.is_dead(folder, folder.view())
    clock.now += 61
    claim_of(folder, elsewhere(token="another"))
    assert not watcher.is_dead(folder, folder.view())


@pytest.fixture
def sleeper() -> Iterator[ProcessName]:
    """The name of another process of this host, which lives until the test ends."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield ProcessName(host=this_process().host, pid=process.pid, started=started(process), token="sleeper")
        process.kill()


def test_a_process_that_lives_on_this_host_holds_its_claim(sleeper: ProcessName, folder: StepFolder) -> None:
    claim_of(folder, sleeper, heartbeat_seconds=3600.0)
    assert not Watcher().is_dead(folder, folder.view())


def dead_process() -> ProcessName:
    """The name of a process of this host that has ended."""
    with subprocess.Popen(["true"]) as process:
        return ProcessName(host=this_process().host, pid=process.pid, started=started(process), token="dead")


def started(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_process_that_died_on_this_host_is_taken_over_at_once(folder: StepFolder) -> None:
    claim_of(folder, dead_process(), heartbeat_seconds=3600.0)
    assert Watcher().is_dead(folder, folder.view())


def test_a_process_that_died_and_that_nobody_waited_for_is_taken_over_too(folder: StepFolder) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        holder = ProcessName(host=this_process().host, pid=process.pid, started=started(process), token="zombie")
        claim_of(folder, holder, heartbeat_seconds=3600.0)
        assert not Watcher().is_dead(folder, folder.view())
        process.kill()
        wait_until(lambda: Watcher().is_dead(folder, folder.view()), "the zombie counted as gone")


def test_a_pid_that_another_process_has_now_counts_as_dead(sleeper: ProcessName, folder: StepFolder) -> None:
    claim_of(folder, msgspec.structs.replace(sleeper, started=sleeper.started - 1), heartbeat_seconds=3600.0)
    assert Watcher().is_dead(folder, folder.view())


def test_a_claim_of_this_pid_by_another_process_counts_as_dead(folder: StepFolder) -> None:
    claim_of(folder, elsewhere(host=this_process().host, token="a process before"), heartbeat_seconds=3600.0)
    assert Watcher().is_dead(folder, folder.view())


def test_a_run_takes_over_a_step_whose_process_died_without_waiting_for_its_expiry(sites: Sites) -> None:
    site = sites("patient")
    site.leave("go")
    claim_of(site.folder(patient.patient), dead_process(), heartbeat_seconds=3600.0)  # it would expire in twelve hours
    ended = site.run()
    assert ended.code == 0, ended
    assert [type(entry) for entry in site.entries(patient.patient)] == [Claim, Claim, Commit]
