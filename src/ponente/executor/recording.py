"""What a run writes before its first step: the payloads that are not stored yet, then its manifest."""

import sys
import time

from ponente.cluster.process import this_process
from ponente.executor.manifest import GitLookup, Manifest, ManifestStep, Runs, who_runs
from ponente.executor.plan import Plan, PlannedStep, State
from ponente.executor.records import PayloadRecord
from ponente.store.redaction import Redactor


def record_run(plan: Plan, run: str, redactor: Redactor, git: GitLookup, description: str | None) -> None:
    """Writes the payloads that are not stored yet, then the manifest."""
    now = time.time()
    for planned in plan.by_identity.values():
        if planned.state is not State.HIT or planned.commit is None or planned.equivalent is not None:
            payload: object = redactor.payload(planned.node.payload)
            assert isinstance(payload, dict)
            text = planned.node.step.description
            record = PayloadRecord(
                identity=planned.node.identity,
                payload=payload,
                run=run,
                time=now,
                description=redactor.text(text) if text else None,
            )
            planned.folder.write_payload(record)
    manifest = Manifest(
        run=run,
        time=now,
        who=who_runs(),
        driver=this_process(),
        argv=redactor.arguments(sys.argv),
        description=redactor.text(description) if description else None,
        git=git.result(),
        steps=[_manifest_step(planned, redactor) for planned in plan.by_identity.values()],
    )
    Runs(plan.prefix).write_manifest(manifest)


def _manifest_step(planned: PlannedStep, redactor: Redactor) -> ManifestStep:
    node = planned.node
    has_output = planned.commit is not None or planned.pinned is not None
    return ManifestStep(
        name=node.name,
        identity=node.identity,
        state=planned.state.value,
        why=redactor.text(planned.why),
        parents=[parent.identity for parent in node.parents],
        watched=[parent.identity for parent in node.watched],
        output=redactor.text(planned.place()) if has_output else None,
        pinned=planned.pinned is not None,
        description=redactor.text(node.step.description) if node.step.description else None,
        resources=repr(node.step.resources) if node.step.resources is not None else None,
    )
