"""What a prefix holds that nobody needs: attempts that came to nothing, old state, outputs that nothing reaches.

In: a prefix, and the experiments whose outputs are to stay. Out: a list; and, if asked to, their removal. What another
process works on is left alone, and so is everything that somebody may be reading: while any claim under the prefix is
alive, only lost attempts go. What goes is claimed first, so that nobody begins to work on it meanwhile.
"""

import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import fsspec

from ponente.cluster.process import is_gone
from ponente.executor.claim import HEART, take_claim
from ponente.executor.graph import Graph
from ponente.executor.manifest import Runs, new_run_name
from ponente.executor.records import Claim, Commit, ErrorNote, Outcome, Release, StepFolder
from ponente.store.volume import volume_of

logger = logging.getLogger(__name__)


class Kind(StrEnum):
    """Why something is not needed."""

    LOST = "lost attempt"
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
        return f"{self.kind.value:<14}{_human(self.size):>10}  {self.path}"


@dataclass(frozen=True)
class Survey:
    """What was found under a prefix."""

    garbage: list[Garbage]
    held: list[str]  # steps that somebody works on, in words

    @property
    def size(self) -> int:
        return sum(one.size for one in self.garbage)

    def __str__(self) -> str:
        lines = [*map(str, self.garbage), *(f"{'in work':<14}{'':>10}  {one}" for one in self.held)]
        total = f"{len(self.garbage)} folders, {_human(self.size)}"
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
            if volume_of(folder.path).names(folder.path):
                found.append(_garbage(Kind.UNREACHED, folder, folder.path))
        else:
            found += [_garbage(Kind.STATE, folder, path) for path in _old_states(folder, older_than)]
    return Survey(found, held)


def remove(found: Survey) -> Iterator[Garbage]:
    """Removes what was found, telling each when it is gone."""
    for one in found.garbage:
        if one.kind is Kind.LOST:
            if one.path in _lost_attempts(one.folder):  # still
                volume_of(one.path).remove(one.path)
                yield one
        elif not found.held and _remove_claimed(one):
            yield one


def _remove_claimed(one: Garbage) -> bool:
    """Removes a folder under a claim; False where somebody else has begun to work there."""
    run, view = new_run_name(), one.folder.view()
    if isinstance(view.entry, Claim) and not is_gone(view.entry.holder):
        return False
    tenure = take_claim(one.folder, view.number, run)
    if tenure is None:
        return False
    HEART.add(tenure)
    try:
        if one.kind is Kind.STATE:
            volume_of(one.path).remove(one.path)
        else:
            _remove_outputs(one.folder)
    finally:
        HEART.remove(tenure)
    if one.kind is Kind.STATE:
        error = ErrorNote(type="Removed", message="ponente gc removed the step's old state")
        tenure.end(Release(outcome=Outcome.PREEMPTED, run=run, time=time.time(), final=False, error=error))
    else:
        _remove_log(one.folder)
    return True


def _remove_outputs(folder: StepFolder) -> None:
    """All that a step has made; its log still says that somebody is at it."""
    volume = volume_of(folder.path)
    for name in volume.names(folder.path):
        if name.startswith(("output-", "state")):
            volume.remove(f"{folder.path}/{name}")


def _remove_log(folder: StepFolder) -> None:
    """The log from its end, so that what is left of it at any moment is one; then all the rest."""
    volume = volume_of(folder.path)
    for number in range(folder.log.last_number(), 0, -1):
        volume.remove(folder.log.path(number))
    volume.remove(folder.path)


def _folder_names(prefix: str) -> list[str]:
    """The folders of all steps that any run under the prefix had."""
    return sorted({step.folder_name for manifest in Runs(prefix).manifests() for step in manifest.steps})


def _reached(prefix: str, keep: Sequence[Graph]) -> set[str]:
    """The folders of the graphs' steps, and of steps whose results these have taken over."""
    names = {node.folder_name for graph in keep for node in graph.nodes}
    for name in list(names):
        folder = StepFolder(prefix, name)
        commit = folder.last_commit(folder.view())
        if commit is not None:
            places = [commit.output, *commit.objects.values()]
            names |= {parent for place in places for parent in _parents(place)}
    return names


def _parents(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _holder(folder: StepFolder) -> str | None:
    entry = folder.view().entry
    if isinstance(entry, Claim) and not is_gone(entry.holder):
        return f"{folder.path} (process {entry.holder.pid} of run {entry.run})"
    return None


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


def _old_states(folder: StepFolder, older_than: float) -> list[str]:
    """State folders that no commit names anything of, long after the last entry of the log."""
    view = folder.view()
    if view.entry is None or time.time() - view.entry.time < older_than:
        return []
    commit = folder.last_commit(view)
    named = {folder.absolute(place) for place in commit.objects.values()} if commit is not None else set()
    states = [f"{folder.path}/{name}" for name in volume_of(folder.path).names(folder.path) if name.startswith("state")]
    return [state for state in states if not any(place.startswith(f"{state}/") for place in named)]


def _garbage(kind: Kind, folder: StepFolder, path: str) -> Garbage:
    return Garbage(kind, folder, path, _size(path))


def _size(path: str) -> int:
    if "://" not in path:
        return sum(os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(path) for name in names)
    filesystem, inner = fsspec.core.url_to_fs(path)
    return int(filesystem.du(inner))


def _human(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
