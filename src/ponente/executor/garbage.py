"""What a prefix holds that nobody needs: attempts that came to nothing, old state, outputs that nothing reaches.

In: a prefix, and the experiments whose outputs are to stay. Out: a list; and, if asked to, their removal. What another
process works on is left alone, and so is everything that somebody may be reading: while any claim under the prefix is
alive, only lost attempts and remains go. What goes is claimed first, so that nobody begins to work on it meanwhile.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from rich.filesize import decimal

from ponente.cluster.process import is_gone
from ponente.executor.claim import HEART, take_claim
from ponente.executor.graph import Graph
from ponente.executor.manifest import Runs, new_run_name
from ponente.executor.plan import PlanRequest, make_plan
from ponente.executor.records import Claim, Commit, ErrorNote, LogView, Outcome, Release, StepFolder
from ponente.store.paths import relative
from ponente.store.usage import last_changed, last_written, size_of
from ponente.store.volume import volume_of

_LOOK_SECONDS = 5.0
_SILENT_SECONDS = 86400.0  # heartbeats and writes come every few seconds; clocks may differ


class Kind(StrEnum):
    """Why something is not needed."""

    LOST = "lost attempt"
    REMAINS = "remains"
    STATE = "old state"
    UNREACHED = "not reached"


@dataclass(frozen=True)
class Garbage:
    """A folder that nobody needs."""

    kind: Kind
    folder: StepFolder
    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind.value:<14}{decimal(self.size):>10}  {self.path}"


@dataclass(frozen=True)
class Survey:
    """What was found under a prefix."""

    prefix: str
    older_than: float
    garbage: list[Garbage]
    held: list[str]  # steps that somebody works on, in words

    @property
    def size(self) -> int:
        return sum(one.size for one in self.garbage)

    def __str__(self) -> str:
        lines = [*map(str, self.garbage), *(f"{'in work':<14}{'':>10}  {one}" for one in self.held)]
        total = f"{len(self.garbage)} folders, {decimal(self.size)}"
        return "\n".join([*lines, total if self.garbage else "nothing to remove"])


def survey(prefix: str, keep: Sequence[Graph] | None, older_than: float) -> Survey:
    """Looks for what may go; removes nothing.

    Args:
        keep: graphs whose steps, and whatever these took their results from, stay; None: all outputs stay.
        older_than: seconds since a state was last needed, before it may go.
    """
    folders = [StepFolder(prefix, name) for name in _folder_names(prefix)]
    reached = None if keep is None else _reached(prefix, keep)
    held = [words for folder in folders if (words := _holder(folder)) is not None]
    found: list[Garbage] = []
    for folder in folders:
        found += [_garbage(Kind.LOST, folder, path) for path in _lost_attempts(folder)]
        if _holder(folder) is not None:
            continue
        if reached is not None and folder.name not in reached:
            found = [one for one in found if one.folder != folder]
            if _left_by(folder):
                found.append(_garbage(Kind.UNREACHED, folder, folder.path))
        else:
            old = _old_states(folder, folder.view(), older_than)
            kept = reached or set()
            found += [_garbage(Kind.STATE, folder, path) for path in old if relative(path, prefix) not in kept]
        found += [_garbage(Kind.REMAINS, folder, path) for path in _remains(folder)]
    return Survey(prefix, older_than, found, held)


def remove(found: Survey) -> Iterator[Garbage]:
    """Removes what was found, telling each when it is gone."""
    alive = _Alive(found.prefix)
    for one in found.garbage:
        if one.kind in (Kind.LOST, Kind.REMAINS):
            if _is_still_waste(one):
                volume_of(one.path).remove(one.path)
                yield one
        elif not alive.is_any() and _remove_claimed(one, found.older_than):
            yield one


def _is_still_waste(one: Garbage) -> bool:
    if one.kind is Kind.LOST:
        return one.path in _lost_attempts(one.folder)
    return _holder(one.folder) is None and one.path in _remains(one.folder)


class _Alive:
    """Whether anybody works under a prefix, looked up again now and then."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._looked_at = -_LOOK_SECONDS
        self._is_any = True

    def is_any(self) -> bool:
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            folders = [StepFolder(self._prefix, name) for name in _folder_names(self._prefix)]
            self._is_any = any(_holder(folder) is not None for folder in folders)
            self._looked_at = time.monotonic()
        return self._is_any


def _remove_claimed(one: Garbage, older_than: float) -> bool:
    """Removes what a step left, under a claim; its log stays, and tells of it. False where somebody else is at it."""
    run = new_run_name()
    if _holder(one.folder) is not None or (one.kind is Kind.UNREACHED and not _mark_removed(one.folder, run)):
        return False
    view = one.folder.view()
    tenure = take_claim(one.folder, view.number, run)
    if tenure is None:
        return False
    HEART.add(tenure)
    volume = volume_of(one.path)
    try:
        if one.kind is Kind.STATE:  # if it still is: a run may have committed something of it since
            left = [path for path in _old_states(one.folder, view, older_than) if path == one.path]
        else:
            left = _left_by(one.folder)
        for path in left:
            volume.remove(path)
    finally:
        HEART.remove(tenure)
        error = ErrorNote(type="Removed", message="ponente gc removed what it had left")
        stopped = Release(outcome=Outcome.PREEMPTED, run=run, time=time.time(), final=False, error=error)
        tenure.end(view.entry if isinstance(view.entry, Commit | Release) else stopped)  # as it was before
    return bool(left)


def _mark_removed(folder: StepFolder, run: str) -> bool:
    """Has the log say that there is no result any more, before the first file goes; False where somebody is at it."""
    view = folder.view()
    commit = folder.last_commit(view)
    if commit is None or commit.removed:
        return True
    tenure = take_claim(folder, view.number, run)
    if tenure is None:
        return False
    tenure.end(msgspec.structs.replace(commit, removed=True))
    return True


def _left_by(folder: StepFolder) -> list[str]:
    """Outputs, state and logs of a step; what is left without them is small, and says how it was made."""
    names = volume_of(folder.path).names(folder.path)
    return [f"{folder.path}/{name}" for name in names if name.startswith(("output-", "state", ".logs"))]


def _remains(folder: StepFolder) -> list[str]:
    """What removals and writes that were cut off long ago left."""
    found = volume_of(folder.path).leftovers(folder.path)
    return [path for path in found if time.time() - (last_changed(path) or time.time()) > _SILENT_SECONDS]


def _folder_names(prefix: str) -> list[str]:
    """The folders of all steps that any run under the prefix had."""
    runs = Runs(prefix)
    manifests = (runs.manifest(name) for name in runs.names())
    return sorted({step.folder_name for manifest in manifests if manifest is not None for step in manifest.steps})


def _reached(prefix: str, keep: Sequence[Graph]) -> set[str]:
    """The folders that the graphs' steps have their results in, or would have, or watch."""
    names: set[str] = set()
    for graph in keep:
        plan = make_plan(graph, prefix, PlanRequest())
        for step in plan.by_identity.values():
            places = [step.folder.path]
            if step.pinned is not None:
                places.append(step.pinned)
            if step.commit is not None:
                places += [
                    step.folder.place(step.commit),
                    *(step.folder.place(step.commit, one) for one in step.commit.objects),
                ]
            names |= {name for place in places for name in _names(place, prefix)}
    return names


def _names(place: str, prefix: str) -> list[str]:
    """A place, from the prefix, and all that it lies in."""
    parts = (relative(place, prefix) or "").split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _holder(folder: StepFolder) -> str | None:
    """Who works on a step, in words; a holder that was silent for a day is none, wherever it was."""
    view = folder.view()
    entry = view.entry
    if not isinstance(entry, Claim) or is_gone(entry.holder):
        return None
    heard = max(entry.time, last_written(folder.heartbeat(view.number)) or 0.0)
    if time.time() - heard > _SILENT_SECONDS:
        return None
    return f"{folder.path} (process {entry.holder.pid} of run {entry.run})"


def _lost_attempts(folder: StepFolder) -> list[str]:
    """Outputs of claims that something other than a commit follows."""
    last = folder.log.last_number()
    entries = [folder.entry(number) for number in range(1, last + 1)]
    lost = []
    for number, (entry, following) in enumerate(itertools.pairwise([*entries, None]), start=1):
        is_over = following is not None or (isinstance(entry, Claim) and is_gone(entry.holder))
        if isinstance(entry, Claim) and is_over and not isinstance(following, Commit):
            lost.append(folder.output(number))
    return [path for path in lost if volume_of(path).is_folder(path)]


def _old_states(folder: StepFolder, view: LogView, older_than: float) -> list[str]:
    """State folders that no commit names anything of, long after the last entry of the log and the last write."""
    commits = [entry for _, entry in folder.entries_backwards(view) if isinstance(entry, Commit)]
    named = {folder.absolute(place) for commit in commits for place in commit.objects.values()}
    states = [f"{folder.path}/{name}" for name in volume_of(folder.path).names(folder.path) if name.startswith("state")]
    unnamed = [state for state in states if not any(place.startswith(f"{state}/") for place in named)]
    entered = view.entry.time if view.entry is not None else 0.0
    return [state for state in unnamed if time.time() - max(entered, last_written(state) or 0.0) >= older_than]


def _garbage(kind: Kind, folder: StepFolder, path: str) -> Garbage:
    return Garbage(kind, folder, path, size_of(path))
