"""What becomes of a plan's steps in a run, and where their results lie."""

from dataclasses import dataclass
from enum import StrEnum

from ponente.cluster.context import Progress
from ponente.cluster.launch import RESUME_EXIT, Running
from ponente.config.errors import RefusedError
from ponente.executor.plan import Plan, PlannedStep
from ponente.executor.records import ErrorNote
from ponente.executor.step import ExecutorStep, StepPath


class Fate(StrEnum):
    """What became of a step in this run."""

    HIT = "hit"
    DONE = "done"
    FAILED = "failed"
    HELD = "held"
    UNNEEDED = "skip"
    OPEN = "unfinished"


@dataclass(eq=False)
class StepRun:
    """A step in this run."""

    planned: PlannedStep
    fate: Fate = Fate.OPEN
    running: Running | None = None
    attempts: int = 0
    log_path: str | None = None
    not_before: float = 0.0
    waits_for_other: bool = False
    error: ErrorNote | None = None
    held_by: "StepRun | None" = None
    last_progress: Progress | None = None
    began: float = 0.0
    last_shown: float = 0.0

    @property
    def name(self) -> str:
        return self.planned.name


@dataclass(frozen=True)
class RunOutcome:
    """What became of all steps; `interrupted` where the run was asked to end."""

    plan: Plan
    steps: list[StepRun]
    interrupted: BaseException | None = None

    def of(self, fate: Fate) -> list[StepRun]:
        return [step for step in self.steps if step.fate is fate]

    def path(self, handle: ExecutorStep | StepPath) -> str:
        """Where the output of a step of this run lies: `outcome.path(report / "report.txt")`."""
        whole = StepPath(handle) if isinstance(handle, ExecutorStep) else handle
        if whole.step not in self:
            raise RefusedError(f"step {whole.step.name!r} has no result in this run; ask `step in outcome` first")
        return self.plan.step_of(whole).resolve(whole)

    def __contains__(self, step: ExecutorStep) -> bool:
        """Whether a step has a result: not where it failed, or was left out by --run_only."""
        node = self.plan.graph.by_step.get(step)
        planned = self.plan.by_identity.get(node.identity) if node is not None else None
        return planned is not None and (planned.commit is not None or planned.pinned is not None)

    @property
    def exit_code(self) -> int:
        if self.interrupted is not None:
            return interruption_code(self.interrupted)
        return 1 if self.of(Fate.FAILED) or self.of(Fate.HELD) else 0


def interruption_code(interruption: BaseException) -> int:
    """The exit code of a driver that was asked to end: as shells have it for Ctrl-C, else "resume me"."""
    return 130 if isinstance(interruption, KeyboardInterrupt) else RESUME_EXIT


def count_of(number: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
