"""Questions about steps, answered from records: which step is meant, why it ran, how two differ, that two are equal.

In: a step as people name it: a folder, `name-hash`, a name or the end of one. Out: text, or for `adopt` a commit in the
new step's log that names the old one's output.
"""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from ponente.config.errors import RefusedError
from ponente.executor.claim import Watcher, take_claim
from ponente.executor.diff import Change, Comparison
from ponente.executor.graph import Graph
from ponente.executor.manifest import History, Manifest, ManifestStep, Runs, who_runs
from ponente.executor.plan import PlanRequest, make_plan
from ponente.executor.records import Adoption, Claim, Commit, PayloadRecord, Release, StepFolder
from ponente.executor.script import graph_of_script
from ponente.store.paths import absolute, relative, resolve_prefix
from ponente.store.redaction import Redactor


@dataclass(frozen=True)
class KnownStep:
    """A step that was found: its folder and payload."""

    folder: StepFolder
    identity: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class Inquiry:
    """Answers about the steps under a prefix, and about those of a graph that has not run yet."""

    prefix: str
    graph: Graph | None = None

    def find(self, reference: str) -> KnownStep:
        """The step that `reference` means; an error lists what is near."""
        return self._in_graph(reference) or self._at_place(reference) or self._by_name(reference)

    def _in_graph(self, reference: str) -> KnownStep | None:
        nodes = [] if self.graph is None else list(self.graph.by_identity.values())
        exact = [node for node in nodes if reference in (node.folder_name, node.name, node.identity)]
        found = exact or [node for node in nodes if node.name.endswith(f"/{reference}")]
        if len(found) > 1:
            raise RefusedError(
                f"{reference!r} may mean {', '.join(node.folder_name for node in found)}; name one of them"
            )
        if not found:
            return None
        return KnownStep(StepFolder(self.prefix, found[0].folder_name), found[0].identity, found[0].payload)

    def _at_place(self, reference: str) -> KnownStep | None:
        for place in (absolute(reference, self.prefix), absolute(reference)):
            name = relative(place, self.prefix)
            if name:
                folder = StepFolder(self.prefix, name)
                record = folder.payload_record()
                if record is not None:
                    return KnownStep(folder, record.identity, record.payload)
        return None

    def _by_name(self, reference: str) -> KnownStep:
        known: dict[str, None] = {}
        for manifest in Runs(self.prefix).manifests():
            known |= dict.fromkeys(step.name for step in manifest.steps)
            exact = [step for step in manifest.steps if step.name == reference]
            found = exact or [step for step in manifest.steps if step.name.endswith(f"/{reference}")]
            if len(found) > 1:
                names = ", ".join(step.folder_name for step in found)
                raise RefusedError(f"{reference!r} may mean {names}; name one of them")
            if found:
                folder = StepFolder(self.prefix, found[0].folder_name)
                record = folder.payload_record()
                if record is not None:
                    return KnownStep(folder, record.identity, record.payload)
        near = f"it has {', '.join(sorted(known)[:20])}" if known else "it has no runs"
        raise RefusedError(
            f"found no step {reference!r} under {self.prefix}; {near}. Name one, or give --script or --prefix"
        )

    def _payload(self, name: str, identity: str) -> dict[str, Any] | None:
        node = self.graph.by_identity.get(identity) if self.graph is not None else None
        if node is not None:
            return node.payload
        record = StepFolder(self.prefix, f"{name}-{identity[:8]}").payload_record()
        return record.payload if record is not None and record.identity == identity else None

    def why(self, reference: str) -> str:
        """What state a step is in, and every field in which it differs from the last run that had it otherwise."""
        step = self.find(reference)
        name = str(step.payload["name"])
        lines = [f"{step.folder.name}", f"  {_state_text(step.folder)}"]
        if self.graph is not None:
            planned = make_plan(self.graph, self.prefix, PlanRequest()).by_identity[step.identity]
            lines.append(f"  now: {planned.state.value}, {planned.why}")
        ran = self._reason_given(step)
        if ran:
            lines.append(f"  {ran}")
        previous = History(self.prefix).previous(name, step.identity)
        if previous is None:
            lines.append(f"  no earlier run has a step {name!r} of another identity")
            return "\n".join(lines) + "\n"
        run, identity = previous
        before = self._payload(name, identity)
        if before is None:
            lines.append(f"  run {run} had {name}-{identity[:8]}, whose payload is not stored")
        else:
            lines.append(f"  run {run} had {name}-{identity[:8]}; since then:")
            lines += [f"    {change}" for change in self._changes(before, step.payload)]
        return "\n".join(lines) + "\n"

    def _changes(self, before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
        return Comparison(self._payload, self._payload).changes(before, after)

    def _reason_given(self, step: KnownStep) -> str | None:
        """Why the run that made (or last tried) the step said that it ran it."""
        view = step.folder.view()
        if view.entry is None:
            return None
        manifest = Runs(self.prefix).manifest(view.entry.run)
        rows = [row for row in manifest.steps if row.identity == step.identity] if manifest else []
        return f"that run planned it so: {rows[0].state}, {rows[0].why}" if rows else None

    def diff(self, first: str, second: str) -> str:
        """Every field in which two steps, or all steps of two runs, differ."""
        runs = Runs(self.prefix)
        manifests = [runs.manifest(reference) for reference in (first, second)]
        if manifests[0] is not None and manifests[1] is not None:
            return self._diff_runs(manifests[0], manifests[1])
        before, after = self.find(first), self.find(second)
        found = self._changes(before.payload, after.payload)
        return _changes_text(f"{before.folder.name} -> {after.folder.name}", found)

    def _diff_runs(self, first: Manifest, second: Manifest) -> str:
        before, after = _only_in(first, second), _only_in(second, first)
        pairs = [pair for name in before if name in after for pair in zip(before[name], after[name], strict=False)]
        paired = {step.identity for pair in pairs for step in pair}
        parts = [
            f"only in {manifest.run}: {step.folder_name}\n"
            for manifest, rest in ((first, before), (second, after))
            for steps in rest.values()
            for step in steps
            if step.identity not in paired
        ]
        told: set[Change] = set()
        comparison = Comparison(self._payload, self._payload)
        for one, other in pairs:
            old, new = self._payload(one.name, one.identity), self._payload(other.name, other.identity)
            if old is None or new is None:
                parts.append(f"{one.name}: a payload is not stored\n")
                continue
            own = [change for change in comparison.changes(old, new) if len(change.steps) == 1]
            parts += [f"{one.name}: {change}\n" for change in own if change not in told]
            told |= set(own)
        return "".join(parts) or "the two runs have the same steps\n"

    def adopt(self, old: str, new: str, reason: str) -> str:
        """Records that the result of `old` is also the result of `new`; nothing is run or copied."""
        if not reason.strip():
            raise RefusedError("found an empty --reason; say why the two are equivalent, for those who come after")
        source, target = self.find(old), self.find(new)
        commit = source.folder.last_commit(source.folder.view())
        if commit is None:
            raise RefusedError(f"{source.folder.name} has no result to adopt; run it, or name a committed step")
        gone = source.folder.missing(commit)
        if gone is not None:
            raise RefusedError(f"{source.folder.name} has no whole result to adopt: {gone}; run it again first")
        if source.identity == target.identity:
            raise RefusedError(f"both names mean {source.folder.name}; name two different steps")
        view = target.folder.view()
        has_result = isinstance(view.entry, Commit) and target.folder.missing(view.entry) is None
        if isinstance(view.entry, Commit) and has_result and view.entry.adopted is not None:
            raise RefusedError(
                f"{target.folder.name} has adopted {view.entry.adopted.folder} already; --force runs it again"
            )
        if has_result:
            raise RefusedError(f"{target.folder.name} already has a result of its own; nothing to adopt")
        if isinstance(view.entry, Claim) and not Watcher().is_dead(target.folder, view):
            raise RefusedError(f"{target.folder.name} is being run by process {view.entry.holder.pid}; stop it first")
        run = f"adopt-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        record = PayloadRecord(identity=target.identity, payload=target.payload, run=run, time=time.time())
        target.folder.write_payload(record)
        tenure = take_claim(target.folder, view.number, run)
        if tenure is None:
            raise RefusedError(f"{target.folder.name} was claimed by somebody in this moment; try again")
        redactor = Redactor.of_process(os.environ, sys.argv)
        adoption = Adoption(
            identity=source.identity, folder=source.folder.name, reason=redactor.text(reason), who=who_runs()
        )
        tenure.end(
            Commit(
                identity=target.identity,
                output=commit.output,
                counts=commit.counts,
                objects=commit.objects,
                summary=commit.summary,
                defaults=commit.defaults,
                run=run,
                time=time.time(),
                adopted=adoption,
            )
        )
        found = self._changes(source.payload, target.payload)
        told = f"{target.folder.name} now has the result of {source.folder.name}; so do steps that differ only by it"
        return _changes_text(f"{told}. They differ in", found)


def _only_in(manifest: Manifest, other: Manifest) -> dict[str, list[ManifestStep]]:
    """The steps of one run that another does not have, by name; several may share a name."""
    known = {step.identity for step in other.steps}
    found: dict[str, list[ManifestStep]] = {}
    for step in manifest.steps:
        if step.identity not in known:
            found.setdefault(step.name, []).append(step)
    return found


def _changes_text(title: str, found: list[Change]) -> str:
    if not found:
        return f"{title}: no difference\n"
    return "\n".join([title, *(f"  {change}" for change in found)]) + "\n"


def _state_text(folder: StepFolder) -> str:
    entry = folder.view().entry
    if entry is None:
        return "has not run"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    if isinstance(entry, Commit) and entry.adopted is not None:
        return f"adopted {when} from {entry.adopted.folder} by {entry.adopted.who}: {entry.adopted.reason}"
    if isinstance(entry, Commit):
        gone = folder.missing(entry)
        lines = [f"committed {when} by run {entry.run}, after {entry.seconds:.1f} s: {folder.place(entry)}"]
        lines += [f"but {gone}"] if gone is not None else []
        lines += [*entry.notes, *(f"{name}: {value}" for name, value in entry.summary.get("values", {}).items())]
        return "\n  ".join(lines)
    if isinstance(entry, Release):
        what = f"{entry.error.type}: {entry.error.message}".partition("\n")[0]
        held = "; --force_run_failed tries again" if entry.final else ""
        return f"{entry.outcome.value} {when} in run {entry.run}: {what}{held}\n  records: {folder.path}"
    return f"claimed {when} by process {entry.holder.pid} of run {entry.run}"


def inquire(prefix: str | None, script: str | None) -> Inquiry:
    """An inquiry about a prefix and, where a script is given, about the steps that it would run."""
    return Inquiry(resolve_prefix(prefix), graph_of_script(script) if script is not None else None)
