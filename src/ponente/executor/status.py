"""The state of a run, derived from its manifest and the logs of its steps, while it runs and after."""

import time
from dataclasses import dataclass
from enum import StrEnum

from ponente.cluster.process import is_gone
from ponente.config.errors import RefusedError
from ponente.executor.manifest import Manifest, ManifestStep, Runs
from ponente.executor.plan import State
from ponente.executor.records import Claim, Commit, Outcome, Release, StepFolder


class Phase(StrEnum):
    """Where a step of a run stands."""

    HIT = "hit"
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    STOPPED = "stopped"
    FAILED = "failed"
    HELD = "held"
    UNNEEDED = "skip"


@dataclass(frozen=True)
class StepStatus:
    """One step: its phase and a word on it."""

    name: str
    phase: Phase
    detail: str

    def __str__(self) -> str:
        return f"{self.phase.value:<9}{self.name}  {self.detail}".rstrip()


@dataclass(frozen=True)
class RunStatus:
    """A run: its steps and whether its driver is still at work."""

    manifest: Manifest
    steps: list[StepStatus]
    is_running: bool

    def count(self, phase: Phase) -> int:
        return sum(step.phase is phase for step in self.steps)

    @property
    def headline(self) -> str:
        """run 2026…: running, 3 done, 2 running, 1 waiting."""
        counts = ", ".join(f"{self.count(phase)} {phase.value}" for phase in Phase if self.count(phase))
        return f"run {self.manifest.run}: {'running' if self.is_running else 'ended'}; {counts}"


def status_of(prefix: str, run: str | None = None) -> RunStatus:
    """The status of a run; by default of the newest one."""
    runs = Runs(prefix)
    names = [run] if run is not None else runs.names()
    manifest = next((found for name in names if (found := runs.manifest(name)) is not None), None)
    if manifest is None:
        known = ", ".join(runs.names()[:5])
        what = f"run {run!r}; it has {known}" if run is not None and known else "run"
        raise RefusedError(f"found no {what} under {prefix}; run an experiment first, or give its --prefix")
    is_running = runs.result(manifest.run) is None and not is_gone(manifest.driver)
    phases: dict[str, Phase] = {}
    steps = []
    watched_only = {identity for step in manifest.steps for identity in step.watched}
    for step in manifest.steps:
        status = _step_status(StepFolder(prefix, step.folder_name), step, manifest.run, is_running, phases)
        phases[step.identity] = status.phase
        if step.identity not in watched_only or step.state != State.RUN.value or status.phase is not Phase.WAITING:
            steps.append(status)
    return RunStatus(manifest, steps, is_running)


def _step_status(
    folder: StepFolder, step: ManifestStep, run: str, is_running: bool, phases: dict[str, Phase]
) -> StepStatus:
    entry = folder.view().entry
    name = step.folder_name
    if step.pinned or (step.state == State.HIT.value and not isinstance(entry, Claim)):
        return StepStatus(name, Phase.HIT, step.why)
    if step.state == State.UNNEEDED.value:
        return StepStatus(name, Phase.UNNEEDED, step.why)
    if isinstance(entry, Commit) and entry.removed:
        return StepStatus(name, Phase.WAITING, "its result was removed by ponente gc; the same command makes it again")
    if isinstance(entry, Commit):
        detail = "; ".join([f"{entry.seconds:.1f} s", *entry.notes])
        return StepStatus(name, Phase.DONE if entry.run == run else Phase.HIT, detail)
    if isinstance(entry, Claim):
        if is_gone(entry.holder):
            return StepStatus(name, Phase.STOPPED, f"process {entry.holder.pid} is gone; the same command goes on")
        progress = folder.progress()
        elapsed = f"{time.time() - entry.time:.0f} s"
        return StepStatus(name, Phase.RUNNING, f"{elapsed}, {progress}" if progress else elapsed)
    if isinstance(entry, Release):
        return StepStatus(name, *_release_status(entry, is_running))
    if any(phases.get(parent) in (Phase.FAILED, Phase.HELD) for parent in step.parents):
        return StepStatus(name, Phase.HELD, "what it needs failed")
    return StepStatus(name, Phase.WAITING, "" if is_running else "the same command goes on")


def _release_status(release: Release, is_running: bool) -> tuple[Phase, str]:
    what = f"{release.error.type}: {release.error.message}".partition("\n")[0]
    if release.final or release.outcome is Outcome.NO_SPACE:
        return Phase.FAILED, what
    return (Phase.RETRYING, what) if is_running else (Phase.STOPPED, f"{what}; the same command goes on")
