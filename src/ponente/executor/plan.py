"""The plan: for each step hit, run, held or not needed, and why; read from records, writing nothing.

In: a graph, a prefix, and what was asked for. Out: planned steps, parents first. A committed step is a hit whatever
became of its parents; what only hits need is not needed. A step that failed for good is held until it is asked for
again or its source file changes.
"""

import copy
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ponente.config.errors import RefusedError, UserError
from ponente.executor.attempt import code_of
from ponente.executor.claim import Watcher
from ponente.executor.defaults import changed_defaults
from ponente.executor.diff import Comparison
from ponente.executor.estimate import Estimate, RateCard
from ponente.executor.graph import Graph, Node, matching
from ponente.executor.identity import identity_of
from ponente.executor.manifest import History
from ponente.executor.records import Claim, Commit, LogView, Outcome, Release, StepFolder
from ponente.executor.step import StepPath, step_type_of
from ponente.store.paths import absolute, join, parent, relative
from ponente.store.volume import volume_of

_MAX_CHANGES = 4


class State(StrEnum):
    """What a run would do with a step."""

    HIT = "hit"
    RUN = "run"
    HELD = "held"
    UNNEEDED = "skip"


class CollisionError(UserError, ValueError):
    """A folder belongs to a step of another identity whose first eight digits are the same."""


@dataclass(eq=False)
class PlannedStep:
    """A node and what a run would do with it. `pinned` is where override_output_path leads, if something is there."""

    node: Node
    folder: StepFolder
    view: LogView
    state: State
    why: str = ""
    commit: Commit | None = None
    pinned: str | None = None
    equivalent: str | None = None  # the identity that this step's result goes by, if it was adopted
    forced: bool = False  # it has all its retries again
    fresh: bool = False  # it starts from nothing
    output_is_gone: bool = False
    estimate: Estimate | None = None
    cost: float | None = None

    @property
    def name(self) -> str:
        return self.node.folder_name

    def place(self, path: str = "") -> str:
        """Where `path` of the step's output lies; only once it is committed or pinned."""
        if self.pinned is not None:
            return join(self.pinned, path) if path else self.pinned
        if self.commit is None:
            raise ValueError(f"step {self.name} has no output yet")
        return self.folder.place(self.commit, path)

    def resolve(self, handle: StepPath) -> str:
        """The place that a handle of this step stands for."""
        if handle.blocking:
            return self.place(handle.path)
        state = self.folder.state(self.view)
        return join(state, handle.path) if handle.path else state


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What the user asked of a plan."""

    run_only: list[str] = field(default_factory=list)
    force: list[str] = field(default_factory=list)
    force_run_failed: bool = False
    rates: RateCard | None = None


@dataclass(frozen=True)
class Plan:
    """All steps, parents first."""

    prefix: str
    graph: Graph
    steps: list[PlannedStep]
    by_identity: dict[str, PlannedStep]
    currency: str = ""

    def of(self, state: State) -> list[PlannedStep]:
        return [step for step in self.steps if step.state is state]

    def step_of(self, handle: StepPath) -> PlannedStep:
        """The planned step that a handle points to."""
        return self.by_identity[self.graph.node_of(handle.step).identity]

    @property
    def total_cost(self) -> float:
        return sum(step.cost or 0.0 for step in self.of(State.RUN))

    @property
    def unpriced(self) -> list[PlannedStep]:
        """Steps to run whose cost nobody knows."""
        return [step for step in self.of(State.RUN) if step.cost is None]


def make_plan(graph: Graph, prefix: str, request: PlanRequest) -> Plan:
    """The plan of a graph under a prefix."""
    _check_prefix(prefix)
    if request.run_only:
        graph = graph.restricted_to(request.run_only)
    planner = _Planner(graph, prefix, request)
    for node in [*graph.watched, *graph.nodes]:
        planner.look_at(node)
    planner.mark_needed()
    planner.explain()
    currency = request.rates.currency if request.rates else ""
    steps = [planner.steps[node.identity] for node in graph.nodes]
    return Plan(prefix=prefix, graph=graph, steps=steps, by_identity=planner.steps, currency=currency)


def _check_prefix(prefix: str) -> None:
    volume, place = volume_of(prefix), prefix
    while not volume.exists(place) and parent(place) != place:
        place = parent(place)
    if volume.exists(place) and not volume.is_folder(place):
        raise RefusedError(f"found prefix {prefix}, but {place} is a file; needed a folder. Give another --prefix")


class _Planner:
    def __init__(self, graph: Graph, prefix: str, request: PlanRequest) -> None:
        self._graph = graph
        self._prefix = prefix
        self._request = request
        self._watcher = Watcher()
        self._history: History | None = None
        self._comparison = Comparison(self._stored, self._current)
        self._forced = {node.identity for node in matching(graph.nodes, request.force, "--force")}
        self._publishing: dict[str, PlannedStep] = {}  # by the place that its pin names
        self.steps: dict[str, PlannedStep] = {}

    def look_at(self, node: Node) -> None:
        """Finds out whether the step has a result; parents were looked at before."""
        folder = StepFolder(self._prefix, node.folder_name)
        view = folder.view()
        step = PlannedStep(node=node, folder=folder, view=view, state=State.RUN)
        self.steps[node.identity] = step
        pinned = self._pinned(node)
        commit = folder.last_commit(view) if view.entry is not None else None
        if commit is not None and commit.identity != node.identity:
            raise self._collision(folder, node, commit.identity)
        if node.identity in self._forced:
            if pinned is not None:
                raise RefusedError(
                    f"found --force for {node.folder_name}, which is pinned to {pinned}, so a new output would have no "
                    "place; remove what is there, or the override_output_path"
                )
            step.forced = step.fresh = True
            step.why = "forced by --force, from nothing"
            return
        step.pinned = pinned
        if step.pinned is not None:
            step.state, step.why = State.HIT, f"pinned to {step.pinned}"
        elif commit is not None:
            self._judge_commit(step, commit)
        else:
            self._judge_equivalent(step)
        if commit is not None and commit.adopted is not None:
            step.equivalent = commit.adopted.identity

    def _pinned(self, node: Node) -> str | None:
        if node.step.override_output_path is None:
            return None
        path = absolute(node.step.override_output_path, self._prefix)
        volume = volume_of(path)
        if not volume.exists(path):
            return None
        name = relative(path, self._prefix)
        folder = StepFolder(self._prefix, name) if name else None
        if folder is None or folder.log.last_number() == 0:
            return volume.published_folder(path) or path
        commit = folder.last_commit(folder.view())
        if commit is None:
            raise RefusedError(
                f"step {node.name!r} is pinned to {path}, the folder of a step that has not finished; run that step "
                "first, or pin to data that is whole"
            )
        if (gone := folder.missing(commit)) is not None:
            raise RefusedError(f"step {node.name!r} is pinned to {path}, but {gone}; run that step again first")
        return folder.place(commit)

    def _collision(self, folder: StepFolder, node: Node, found: str) -> CollisionError:
        return CollisionError(
            f"{folder.path} belongs to identity {found}, not to {node.identity} of step {node.name!r}, which begins "
            "with the same eight digits. Rename the step, or use another --prefix"
        )

    def _judge_commit(self, step: PlannedStep, commit: Commit) -> None:
        step.commit = commit
        gone = step.folder.missing(commit)
        if gone is not None:
            step.commit, step.output_is_gone = None, True
            step.why = f"its output is not whole: {gone}"
            return
        step.state = State.HIT
        if commit.adopted is not None:
            step.why = f"adopted from {commit.adopted.folder}: {commit.adopted.reason}"
        else:
            changed = changed_defaults(commit.defaults, step.node)
            step.why = "; ".join([f"committed {_ago(commit.time)} by run {commit.run}", *commit.notes, *changed])

    def _judge_equivalent(self, step: PlannedStep) -> None:
        """A step whose parents were adopted may already have a result under the identity it had before."""
        swaps = {
            parent.identity: equivalent
            for parent in step.node.parents + step.node.watched
            if (equivalent := self.steps[parent.identity].equivalent) is not None
        }
        if not swaps:
            return
        identity = identity_of(_swapped(step.node.payload, swaps))
        other = StepFolder(self._prefix, f"{step.node.name}-{identity[:8]}")
        commit = other.last_commit(other.view())
        if commit is not None and commit.identity == identity and other.missing(commit) is None:
            step.commit, step.equivalent, step.state = commit, identity, State.HIT
            names = sorted({self.steps[parent].node.name for parent in swaps})
            step.why = f"equal to {other.name}, because {', '.join(names)} was adopted"

    def mark_needed(self) -> None:
        """Steps that no target needs, now that some are hits, are left alone."""
        needed = {node.identity for node in self._graph.targets} | self._forced
        for node in reversed(self._graph.nodes):
            step = self.steps[node.identity]
            if node.identity in needed and step.state is not State.HIT:
                needed |= {parent.identity for parent in node.parents}
        for node in self._graph.nodes:
            step = self.steps[node.identity]
            if step.state is not State.HIT and node.identity not in needed:
                step.state, step.why = State.UNNEEDED, "what uses it is done"

    def explain(self) -> None:
        """Says why each step that is to run does so, or what holds it back, and what it will take."""
        for node in self._graph.nodes:
            step = self.steps[node.identity]
            if step.state is not State.RUN:
                continue
            record = step.folder.payload_record()
            if record is not None and record.identity != node.identity:
                raise self._collision(step.folder, node, record.identity)
            if not step.forced:
                self._explain_log(step)
            if node.step.override_output_path is not None:
                step.why += f"; its output goes to {absolute(node.step.override_output_path, self._prefix)}"
            self._check_own_pin(step)
            held = [parent for parent in node.parents if self.steps[parent.identity].state is State.HELD]
            if held and step.state is State.RUN:
                step.state, step.why = State.HELD, f"needs {held[0].folder_name}, which is held"
            self._estimate(step)

    def _check_own_pin(self, step: PlannedStep) -> None:
        """Two steps to run may not publish at one place: the second would commit the output of the first."""
        if step.node.step.override_output_path is None:
            return
        path = absolute(step.node.step.override_output_path, self._prefix)
        first = self._publishing.setdefault(path, step)
        if first is not step:
            raise RefusedError(
                f"found {first.name} and {step.name}, both pinned to {path}, where nothing is yet, so both would "
                "publish there; give each a place of its own"
            )

    def _explain_log(self, step: PlannedStep) -> None:
        entry = step.view.entry
        if entry is None:
            step.why = step.why or self._changed(step)
        elif isinstance(entry, Claim):
            dead = self._watcher.is_dead(step.folder, step.view)
            holder = f"process {entry.holder.pid} of run {entry.run}"
            step.why = f"cut off: {holder} is gone" if dead else f"running now: {holder} has claimed it"
        elif isinstance(entry, Release):
            self._explain_release(step, entry)

    def _explain_release(self, step: PlannedStep, release: Release) -> None:
        what = f"{release.error.type}: {release.error.message}".strip().partition("\n")[0]
        when = f"{_ago(release.time)} in run {release.run}"
        if release.outcome is Outcome.PREEMPTED:  # however often: it lost its place and did not fail
            step.why = f"goes on: it was stopped {when}"
        elif release.outcome is Outcome.NO_SPACE:
            step.why = f"goes on: there was no space left {when}"
        elif not release.final:
            step.why = f"tried again: it failed {when} ({what})"
        elif self._request.force_run_failed:
            step.forced = True
            step.why = f"--force_run_failed: it failed {when} ({what})"
        elif release.code is not None and release.code != code_of(step.node.step.fn):
            step.forced = True
            step.why = f"its code has changed since it failed {when} ({what}); goes on from its state, if it has any"
        else:
            step.state = State.HELD
            step.why = f"it failed {when} ({what}); --force_run_failed tries again, as does a change of its source file"

    def _changed(self, step: PlannedStep) -> str:
        if self._history is None:
            self._history = History(self._prefix)
        node = step.node
        previous = self._history.previous(node.name, node.identity)
        if previous is None:
            return "new"
        run, identity = previous
        before = self._stored(node.name, identity)
        if before is None:
            return f"its payload in run {run} is not stored"
        found = self._comparison.changes(before, node.payload)
        shown = "; ".join(map(str, found[:_MAX_CHANGES]))
        more = f" and {len(found) - _MAX_CHANGES} more" if len(found) > _MAX_CHANGES else ""
        return f"{shown}{more}, since run {run}"

    def _stored(self, name: str, identity: str) -> dict[str, Any] | None:
        record = StepFolder(self._prefix, f"{name}-{identity[:8]}").payload_record()
        return record.payload if record is not None and record.identity == identity else None

    def _current(self, name: str, identity: str) -> dict[str, Any] | None:
        node = self._graph.by_identity.get(identity)
        return node.payload if node is not None else None

    def _estimate(self, step: PlannedStep) -> None:
        estimate = step_type_of(step.node.step.fn).estimate
        if estimate is None:
            return
        try:
            step.estimate = estimate(step.node.step.config)
        except Exception as error:
            raise RefusedError(
                f"the estimate of step {step.node.name!r} raised {type(error).__name__}: {error}; mend the function "
                "that its step type gives"
            ) from error
        if not isinstance(step.estimate, Estimate):
            raise RefusedError(f"the estimate of step {step.node.name!r} is {step.estimate!r}; needed an Estimate")
        resources = step.node.step.resources
        rates = self._request.rates or RateCard()
        step.cost = rates.price(step.estimate, resources.device if resources is not None else "cpu")


def _swapped(payload: dict[str, Any], swaps: dict[str, str]) -> dict[str, Any]:
    """`payload` with identities of dependencies exchanged."""
    swapped = copy.deepcopy(payload)
    stack: list[Any] = [swapped]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value.get("$step") in swaps:
                value["$step"] = swaps[value["$step"]]
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return swapped


def _ago(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
