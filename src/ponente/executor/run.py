"""The run: launches what the plan says, retries, waits for others without stalling, holds back dependents.

In: a plan and a launcher. Out: what became of each step. The driver never decides that a step is done: it launches
attempts and reads logs. One failure holds back only what depends on it. A step that another driver works on is looked
at now and then while everything else goes on.
"""

import collections
import logging
import os
import queue
import signal
import time

import msgspec

from ponente.cluster.launch import LOST_EXIT, RESUME_EXIT, Launcher, Task, stop_all
from ponente.cluster.process import StoppedError, is_gone, signal_name
from ponente.cluster.resources import CpuOnly
from ponente.executor.attempt import CLAIMED_EXIT, ENTRY, NO_SPACE_EXIT, Job, code_of
from ponente.executor.claim import Watcher
from ponente.executor.outcome import Fate, RunOutcome, StepRun, count_of
from ponente.executor.plan import Plan, PlannedStep, State
from ponente.executor.records import Claim, Commit, ErrorNote, LogView, Outcome, Release
from ponente.executor.reference import refer
from ponente.executor.transit import pack
from ponente.store.paths import absolute
from ponente.store.redaction import Redactor

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_PROGRESS_SECONDS = 5.0
_STILL_RUNNING_SECONDS = 60.0
_STOP_GRACE_SECONDS = 10.0
_GANG_GRACE_SECONDS = 130.0  # for a checkpoint of processes on several hosts
_PREEMPTING_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class Driver:
    """Runs a plan."""

    def __init__(self, plan: Plan, launcher: Launcher, redactor: Redactor, *, run: str, max_concurrent: int) -> None:
        self._plan = plan
        self._launcher = launcher
        self._redactor = redactor
        self._run = run
        self._max_concurrent = max_concurrent
        self._cpus = os.cpu_count() or 1
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._watcher = Watcher()
        self._exits: queue.SimpleQueue[tuple[StepRun, int]] = queue.SimpleQueue()
        self._steps = {step.node.identity: StepRun(step) for step in plan.steps}
        self._children: dict[str, list[StepRun]] = {identity: [] for identity in self._steps}
        self._missing: dict[str, int] = {}  # how many parents of a step have no result yet
        self._ready: collections.deque[StepRun] = collections.deque()
        self._delayed: list[StepRun] = []  # to be looked at again: retries, and steps that somebody else holds
        self._active: set[StepRun] = set()
        self._total = len(plan.of(State.RUN))
        self._ended = 0
        self._last_shown = time.monotonic()

    def run(self) -> RunOutcome:
        """Runs to the end, or until KeyboardInterrupt or StoppedError is raised in this thread."""
        self._take_plan()
        interrupted: BaseException | None = None
        try:
            while self._ready or self._delayed or self._active:
                self._launch_ready()
                self._collect()
                self._look_at_delayed()
                self._show_progress()
        except (KeyboardInterrupt, StoppedError) as error:
            logger.warning("stopping %s", count_of(len(self._active), "running step"))
            interrupted = error
        finally:
            self._stop()
        return RunOutcome(self._plan, list(self._steps.values()), interrupted)

    def _take_plan(self) -> None:
        fates = {State.HIT: Fate.HIT, State.UNNEEDED: Fate.UNNEEDED, State.RUN: Fate.OPEN, State.HELD: Fate.HELD}
        for identity, step in self._steps.items():  # parents first
            step.fate = fates[step.planned.state]
            parents = [self._steps[parent.identity] for parent in step.planned.node.parents]
            for parent in parents:
                self._children[parent.planned.node.identity].append(step)
            entry = step.planned.view.entry
            if step.fate is Fate.HELD:
                step.held_by = next((parent for parent in parents if parent.fate in (Fate.HELD, Fate.FAILED)), None)
            if step.fate is Fate.HELD and step.held_by is None and isinstance(entry, Release):
                step.fate, step.error = Fate.FAILED, entry.error
            if step.fate is Fate.OPEN:
                self._missing[identity] = sum(parent.fate is Fate.OPEN for parent in parents)
                if self._missing[identity] == 0:
                    self._ready.append(step)

    # -- launching

    def _launch_ready(self) -> None:
        for _ in range(len(self._ready)):
            if len(self._active) >= self._max_concurrent:
                return
            step = self._ready.popleft()
            if self._has_room(step):
                self._consider(step)
            else:
                self._ready.append(step)

    def _has_room(self, step: StepRun) -> bool:
        """Whether the machine has what the step asks for; a step that asks for more than there is runs alone."""
        asked = step.planned.node.step.resources
        if self._launcher.finds_room:
            return True
        held = [other.planned.node.step.resources for other in self._active]
        if asked is None or not held:
            return True
        if isinstance(asked, CpuOnly):
            others = [other for other in held if isinstance(other, CpuOnly)]
            cpus = asked.num_cpus + sum(other.num_cpus for other in others)
            memory = asked.memory_bytes + sum(other.memory_bytes for other in others)
            return not others or (cpus <= self._cpus and memory <= self._memory_bytes)
        return all(other is None or isinstance(other, CpuOnly) for other in held)

    def _consider(self, step: StepRun) -> None:
        """Launches a step, unless its log says that it is done, lost, or in somebody else's hands."""
        folder = step.planned.folder
        view = folder.view()
        planned = step.planned.view
        news = view.number > planned.number and view.entry != planned.entry  # written since the plan was made
        result = view.entry if isinstance(view.entry, Commit) and not view.entry.removed else None
        if result is not None and (news or not (step.planned.forced or step.planned.output_is_gone)):
            step.planned.commit = result
            self._end(step, Fate.DONE if result.run == self._run else Fate.HIT)
        elif isinstance(view.entry, Release) and news and view.entry.final:
            self._fail(step, view.entry.error)
        elif isinstance(view.entry, Claim) and not self._watcher.is_dead(folder, view):
            if not step.waits_for_other:
                logger.info("%s: waiting for process %d of run %s", step.name, view.entry.holder.pid, view.entry.run)
            step.waits_for_other = True
            self._delay(step, _POLL_SECONDS)
        else:
            step.waits_for_other = False
            self._launch(step, view)

    def _delay(self, step: StepRun, seconds: float) -> None:
        step.not_before = time.monotonic() + seconds
        self._delayed.append(step)

    def _launch(self, step: StepRun, view: LogView) -> None:
        node = step.planned.node
        step.attempts += 1
        failed, preempted = _spent(step.planned, view, self._run)
        override = node.step.override_output_path
        job = Job(
            prefix=self._plan.prefix,
            folder=node.folder_name,
            identity=node.identity,
            name=node.name,
            fn=refer(node.step.fn),
            config=pack(node.step.config, lambda handle: self._plan.step_of(handle).resolve(handle)),
            run=self._run,
            after=view.number,
            errors_left=node.step.retries.errors - failed,
            preemptions_left=node.step.retries.preemptions - preempted,
            forced=step.planned.forced and step.attempts == 1,
            fresh=step.planned.fresh and step.attempts == 1,
            override_output=absolute(override, self._plan.prefix) if override is not None else None,
            resources=pack(node.step.resources, lambda handle: self._plan.step_of(handle).resolve(handle)),
            defaults=node.defaults,
            secrets=self._redactor.secrets,
        )
        step.log_path = step.planned.folder.step_log(self._run, step.attempts)
        task = Task(
            name=node.name,
            entry=ENTRY,
            job=msgspec.to_builtins(job),
            log_path=step.log_path,
            env=node.step.environment.variables,
            requirements=node.step.environment.requirements,
            resources=node.step.resources,
        )
        step.began = time.monotonic()
        self._active.add(step)
        logger.debug("%s: attempt %d", step.name, step.attempts)
        try:
            step.running = self._launcher.start(task, lambda code: self._exits.put((step, code)))
        except Exception:
            self._active.discard(step)
            raise

    # -- what came of it

    def _collect(self) -> None:
        timeout = _PROGRESS_SECONDS if self._active else 0.0
        if self._delayed:
            due = max(0.0, min(step.not_before for step in self._delayed) - time.monotonic())
            timeout = min(timeout, due) if self._active else due
        try:
            while True:
                step, code = self._exits.get(timeout=timeout) if timeout else self._exits.get_nowait()
                timeout = 0.0
                self._after_exit(step, code)
        except queue.Empty:
            return

    def _look_at_delayed(self) -> None:
        now = time.monotonic()
        due = [step for step in self._delayed if step.not_before <= now]
        if due:
            self._delayed = [step for step in self._delayed if step.not_before > now]
            self._ready.extend(due)

    def _after_exit(self, step: StepRun, code: int) -> None:
        running, step.running = step.running, None
        self._active.discard(step)
        folder = step.planned.folder
        view = folder.view()
        tail = running.tail() if running is not None else ""
        if self._was_ours(view):
            view = self._release_for(step, view, code, tail)
        entry = view.entry
        if isinstance(entry, Commit) and not entry.removed and view.number > step.planned.view.number:
            step.planned.commit = entry
            self._end(step, Fate.DONE)
        elif code == NO_SPACE_EXIT:
            self._fail(step, _no_space_note(self._plan.prefix, entry))
        elif isinstance(entry, Release) and view.number > step.planned.view.number:
            if entry.final:
                self._fail(step, entry.error)
            else:
                self._try_again(step, entry.outcome, entry.error)
        elif code == CLAIMED_EXIT:
            self._delay(step, 0.0)
        else:
            self._after_early_end(step, code, tail)

    def _after_early_end(self, step: StepRun, code: int, tail: str) -> None:
        """What becomes of a step whose process ended before it could claim it: no log tells of that."""
        error = ErrorNote(type="Crash", message=f"the step's process {_how(code)} before it began", traceback=tail)
        if _is_preemption(code) and step.attempts <= step.planned.node.step.retries.preemptions:
            self._try_again(step, Outcome.PREEMPTED, error)
        else:
            self._fail(step, error)

    def _was_ours(self, view: LogView) -> bool:
        """Whether the log ends with a claim of this run whose process is gone; other runs' claims are theirs."""
        if not isinstance(view.entry, Claim) or view.entry.run != self._run:
            return False
        return is_gone(view.entry.holder) or self._launcher.finds_room  # another machine's processes are not seen here

    def _release_for(self, step: StepRun, view: LogView, code: int, tail: str) -> LogView:
        """Writes the release that a dead holder could not write."""
        retries = step.planned.node.step.retries
        failed, preempted = _spent(step.planned, view, self._run)
        outcome, left = Outcome.FAILED, retries.errors - failed
        if code == NO_SPACE_EXIT:
            outcome, left = Outcome.NO_SPACE, 1
        elif _is_preemption(code):
            outcome, left = Outcome.PREEMPTED, retries.preemptions - preempted
        release = Release(
            outcome=outcome,
            run=self._run,
            time=time.time(),
            final=left <= 0,
            error=ErrorNote(type="Crash", message=f"the step's process {_how(code)}", traceback=tail),
            code=code_of(step.planned.node.step.fn),
        )
        try:
            step.planned.folder.append(view.number, release)
        except OSError as error:  # nothing is lost: the next driver sees that the holder is gone
            logger.warning("%s: %s", step.name, error)
        return step.planned.folder.view()

    def _try_again(self, step: StepRun, outcome: Outcome, error: ErrorNote) -> None:
        seconds = min(10.0, 0.1 * 2 ** min(step.attempts - 1, 10))
        what = f"{error.type}: {error.message}".partition("\n")[0]
        logger.warning("%s: %s (%s); again in %.1f s", step.name, outcome.value, what, seconds)
        self._delay(step, seconds)

    def _end(self, step: StepRun, fate: Fate) -> None:
        step.fate = fate
        self._ended += 1
        if fate is Fate.DONE:
            seconds = time.monotonic() - step.began
            notes = "".join(f"; {note}" for note in step.planned.commit.notes) if step.planned.commit else ""
            logger.info("[%d/%d] done   %s (%.1f s)%s", self._ended, self._total, step.name, seconds, notes)
        else:
            logger.info("[%d/%d] hit    %s (another run made it)", self._ended, self._total, step.name)
        for child in self._children[step.planned.node.identity]:
            identity = child.planned.node.identity
            if identity in self._missing:
                self._missing[identity] -= 1
                if self._missing[identity] == 0 and child.fate is Fate.OPEN:
                    self._ready.append(child)

    def _fail(self, step: StepRun, error: ErrorNote) -> None:
        step.fate, step.error = Fate.FAILED, error
        self._ended += 1
        what = f"{error.type}: {error.message}".partition("\n")[0]
        logger.error("[%d/%d] failed %s (%s)", self._ended, self._total, step.name, what)
        stack = list(self._children[step.planned.node.identity])
        while stack:
            child = stack.pop()
            if child.fate is Fate.OPEN:
                child.fate, child.held_by = Fate.HELD, step
                self._ended += 1
                logger.error("[%d/%d] held   %s (needs %s)", self._ended, self._total, child.name, step.name)
                stack += self._children[child.planned.node.identity]

    def _show_progress(self) -> None:
        now = time.monotonic()
        if now - self._last_shown < _PROGRESS_SECONDS:
            return
        self._last_shown = now
        for step in self._active:
            progress = step.planned.folder.progress()
            if progress is not None and progress != step.last_progress:
                step.last_progress, step.last_shown = progress, now
                logger.info("       at     %s: %s", step.name, progress)
            elif now - max(step.began, step.last_shown) > _STILL_RUNNING_SECONDS:
                step.last_shown = now
                waits_for = step.running.waits_for if step.running is not None else None
                what = "runs" if waits_for is None else f"waits for {waits_for}"
                logger.info("       at     %s: %s, since %.0f s", step.name, what, now - step.began)

    def _stop(self) -> None:
        """Asks what still runs to end, then makes it, and writes down that it was stopped."""
        started = [step for step in self._active if step.running is not None]  # not so where a start was interrupted
        if not self._active:
            return
        exits: dict[StepRun, int] = {}

        def still_running() -> bool:
            while not self._exits.empty():
                step, code = self._exits.get()
                exits[step] = code
            return any(step not in exits for step in started)

        asked = [step.planned.node.step.resources for step in started]
        is_gang = any(one is not None and one.host_count > 1 for one in asked)
        grace = _GANG_GRACE_SECONDS if is_gang else _STOP_GRACE_SECONDS
        stop_all([step.running for step in started if step.running is not None], still_running, grace)
        for step, code in exits.items():
            view = step.planned.folder.view()
            if self._was_ours(view):
                self._release_for(step, view, code, "")


def _spent(planned: PlannedStep, view: LogView, run: str) -> tuple[int, int]:
    """(errors, preemptions) since the step last had a clean slate: a commit, a final failure, a forced claim.

    Only preemptions of this run count: however often a driver is stopped and started again, its steps go on.
    """
    failed = preempted = 0
    counted: list[Release] = []
    for _, entry in planned.folder.entries_backwards(view):
        if isinstance(entry, Commit) or (isinstance(entry, Release) and entry.final):
            break
        if isinstance(entry, Release):
            if entry not in counted:  # a removal of old state says again what was said before it
                counted.append(entry)
                failed += entry.outcome is Outcome.FAILED
                preempted += entry.outcome is Outcome.PREEMPTED and entry.run == run
        elif isinstance(entry, Claim) and entry.forced:
            break
    return failed, preempted


def _is_preemption(code: int) -> bool:
    return code in (RESUME_EXIT, LOST_EXIT) or -code in _PREEMPTING_SIGNALS


def _how(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL (by the kernel, if memory ran out)"
    if code == LOST_EXIT:
        return "was lost with its machine"
    return f"was ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _no_space_note(prefix: str, entry: object) -> ErrorNote:
    note = entry.error if isinstance(entry, Release) and entry.outcome is Outcome.NO_SPACE else None
    message = (
        f"no space left on the disk that holds {prefix}. Nothing half-written was published; "
        "free some space and run the same command again: it goes on from here"
    )
    return ErrorNote(type="NoSpace", message=message, traceback=note.traceback if note else "")
