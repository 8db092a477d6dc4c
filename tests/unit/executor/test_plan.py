"""The plan: hit, run, held or skip, and why; it reads records and writes nothing."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zoo
from winds import WindConfig, blow, winds

from ponente.config import UserError
from ponente.executor import ExecutorOptions, ExecutorStep, plan_steps, run_steps
from ponente.executor.claim import take_claim
from ponente.executor.graph import build_graph
from ponente.executor.manifest import Runs
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan, State
from ponente.executor.records import PayloadRecord, StepFolder
from ponente.executor.report import outcome_text, plan_text
from ponente.store.formats import FormatError

Runner = Callable[..., RunOutcome]
Planner = Callable[..., Plan]


def states(plan: Plan) -> dict[str, str]:
    return {step.node.name.removeprefix("winds/"): step.state.value for step in plan.steps}


def why(plan: Plan, name: str) -> str:
    return next(step.why for step in plan.steps if step.node.name == f"winds/{name}")


def folder_of(prefix: str, step: ExecutorStep) -> Path:
    return Path(prefix) / build_graph([step]).node_of(step).folder_name


def tree(folder: str) -> dict[str, Any]:
    """Everything below a folder: bytes, times and modes of files, times of folders."""
    found: dict[str, Any] = {}
    for path in sorted(Path(folder).rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_mtime_ns, stat.st_mode, path.read_bytes() if path.is_file() else None)
    return found


# -- reading only


def test_planning_under_a_new_prefix_creates_nothing(plan: Planner, tmp_path: Path) -> None:
    assert states(plan(*winds())) == {"levante": "run", "ponente": "run", "tramontana": "run"}
    assert list(tmp_path.iterdir()) == []


def test_planning_changes_no_byte_and_no_time_of_what_is_there(run: Runner, plan: Planner, prefix: str) -> None:
    run(*winds())
    run(*winds(tramontana=-1))
    before = tree(prefix)
    for again in (winds(), winds(levante=7), winds(tramontana=-1)):
        plan(*again)
        plan(*again, force=["levante"], force_run_failed=True)
    assert tree(prefix) == before


# -- states and reasons


def test_what_never_ran_is_new(plan: Planner) -> None:
    assert why(plan(*winds()), "levante") == "new"


def test_what_is_committed_is_a_hit_that_names_its_run(run: Runner, plan: Planner, prefix: str) -> None:
    run(*winds())
    planned = plan(*winds())
    assert states(planned) == {"levante": "hit", "ponente": "hit", "tramontana": "hit"}
    assert why(planned, "levante").startswith("committed 20") and Runs(prefix).names()[0] in why(planned, "levante")


def test_a_change_of_a_config_runs_it_and_its_descendants_and_names_the_field(
    run: Runner, plan: Planner, prefix: str
) -> None:
    run(*winds())
    planned = plan(*winds(ponente=5))
    since = f"since run {Runs(prefix).names()[0]}"
    assert states(planned) == {"levante": "hit", "ponente": "run", "tramontana": "run"}
    assert why(planned, "ponente") == f"config.force 2 -> 5, {since}"
    assert why(planned, "tramontana") == f"winds/ponente: config.force 2 -> 5, {since}"


def test_a_change_two_levels_up_is_named_where_it_was_made(run: Runner, plan: Planner, prefix: str) -> None:
    run(*winds())
    told = why(plan(*winds(levante=9)), "tramontana")
    run_name = Runs(prefix).names()[0]
    assert told == f"winds/ponente <- winds/levante: config.force (default) -> 9, since run {run_name}"


def test_the_run_named_is_the_last_that_had_the_step_otherwise(run: Runner, plan: Planner, prefix: str) -> None:
    run(*winds(tramontana=1))
    run(*winds(tramontana=2))
    newest = Runs(prefix).names()[0]
    assert why(plan(*winds(tramontana=3)), "tramontana") == f"config.force 2 -> 3, since run {newest}"


def test_many_changes_are_counted_not_all_told(run: Runner, plan: Planner) -> None:
    run(zoo.step({str(number): 0 for number in range(9)}))
    [step] = plan(zoo.step({str(number): 1 for number in range(9)})).steps
    assert "config.3 0 -> 1 and 5 more, since run" in step.why


def test_a_long_changed_chain_is_planned_without_recursion(run: Runner, plan: Planner) -> None:
    def chain(force: int) -> ExecutorStep:
        step = zoo.step({"force": force}, name="link-0")
        for number in range(1, 400):
            step = zoo.step([step], name=f"link-{number}")
        return step

    assert run(chain(1)).exit_code == 0
    planned = plan(chain(2))
    assert len(planned.of(State.RUN)) == 400
    assert planned.steps[-1].why.startswith("link-398 <- link-397 <- … <- link-0: config.force 1 -> 2, since run")


def test_observation_and_execution_fields_run_nothing(run: Runner, plan: Planner) -> None:
    run(*winds())
    assert plan(*winds(note="a new tag", workers=64)).of(State.RUN) == []


def test_a_failed_step_is_held_with_its_error_and_holds_what_needs_it(run: Runner, plan: Planner) -> None:
    third = winds(ponente=-1)[2]
    run(third)
    planned = plan(third)
    assert states(planned) == {"levante": "hit", "ponente": "held", "tramontana": "held"}
    assert "ValueError: found force=-1; a wind cannot blow backwards" in why(planned, "ponente")
    assert why(planned, "ponente").endswith("--force_run_failed tries again, as does a change of its source file")
    assert why(planned, "tramontana").startswith("needs winds/ponente-")


def test_force_run_failed_runs_what_was_held(run: Runner, plan: Planner) -> None:
    third = winds(ponente=-1)[2]
    run(third)
    planned = plan(third, force_run_failed=True)
    assert states(planned) == {"levante": "hit", "ponente": "run", "tramontana": "run"}
    assert why(planned, "ponente").startswith("--force_run_failed: it failed 20")


def test_a_held_step_ends_a_run_with_1_and_the_old_error(run: Runner) -> None:
    third = winds(ponente=-1)[2]
    run(third)
    outcome = run(third)
    assert outcome.exit_code == 1
    text = outcome_text(outcome, "the command")
    assert "ValueError: found force=-1" in text and "holds back 1: winds/tramontana-" in text
    assert "--force_run_failed tries again" in text


def test_what_uses_only_hits_is_skipped(run: Runner, plan: Planner, prefix: str) -> None:
    steps = winds()
    run(*steps)
    shutil.rmtree(folder_of(prefix, steps[0]) / "output-1")
    shutil.rmtree(folder_of(prefix, steps[1]) / "output-1")
    planned = plan(steps[2])
    assert states(planned) == {"levante": "skip", "ponente": "skip", "tramontana": "hit"}
    assert why(planned, "levante") == "what uses it is done"


def test_a_removed_output_is_made_again_with_what_it_needs(run: Runner, plan: Planner, prefix: str) -> None:
    steps = winds()
    run(*steps)
    for step in steps[:2]:
        shutil.rmtree(folder_of(prefix, step) / "output-1")
    planned = plan(*steps)
    assert states(planned) == {"levante": "run", "ponente": "run", "tramontana": "hit"}
    assert "is gone" in why(planned, "ponente") or "are gone" in why(planned, "ponente")
    outcome = run(*steps)
    assert [step.name for step in outcome.of(Fate.DONE)] == [step.name for step in planned.of(State.RUN)]
    assert Path(outcome.path(steps[1] / "wind.txt")).read_text() == "1\n2\n"
    assert plan(*steps).of(State.RUN) == []


def test_run_only_leaves_out_what_the_chosen_do_not_need(plan: Planner) -> None:
    planned = plan(*winds(), run_only=["ponente"])
    assert states(planned) == {"levante": "run", "ponente": "run"}


def test_run_only_runs_the_chosen_steps_though_they_are_no_targets(run: Runner, prefix: str) -> None:
    steps = winds()
    outcome = run(steps[2], run_only=["^winds/levante$"])
    assert [step.planned.node.name for step in outcome.of(Fate.DONE)] == ["winds/levante"]
    assert steps[0] in outcome and steps[2] not in outcome


def test_force_runs_a_hit_again_and_its_descendants_stay_hits(run: Runner, plan: Planner) -> None:
    steps = winds()
    run(*steps)
    planned = plan(*steps, force=["ponente"])
    assert states(planned) == {"levante": "hit", "ponente": "run", "tramontana": "hit"}
    assert why(planned, "ponente") == "forced by --force, from nothing"
    outcome = run(*steps, force=["ponente"])
    assert [step.planned.node.name for step in outcome.of(Fate.DONE)] == ["winds/ponente"]
    assert Path(outcome.path(steps[1] / "wind.txt")).read_text() == "1\n2\n"


# -- records that are not results


def test_a_stored_payload_alone_is_no_hit(plan: Planner, prefix: str) -> None:
    [node] = build_graph([step := winds()[0]]).nodes
    StepFolder(prefix, node.folder_name).write_payload(
        PayloadRecord(identity=node.identity, payload=node.payload, run="stub", time=0.0)
    )
    assert states(plan(step)) == {"levante": "run"}


def test_a_claim_alone_is_no_hit_and_whether_its_holder_lives_is_told(plan: Planner, prefix: str) -> None:
    step = winds()[0]
    folder = StepFolder(prefix, build_graph([step]).nodes[0].folder_name)
    tenure = take_claim(folder, 0, "another-run")
    assert tenure is not None
    assert states(plan(step)) == {"levante": "run"}
    assert why(plan(step), "levante") == f"running now: process {os.getpid()} of run another-run has claimed it"
    gone = msgspec.structs.replace(tenure.claim, holder=msgspec.structs.replace(tenure.claim.holder, token="forked"))
    assert folder.append(1, gone)
    assert why(plan(step), "levante") == f"cut off: process {os.getpid()} of run another-run is gone"


def test_output_without_a_commit_is_no_hit(plan: Planner, prefix: str) -> None:
    step = winds()[0]
    output = folder_of(prefix, step) / "output-1"
    output.mkdir(parents=True)
    (output / "wind.txt").write_text("1\n")
    assert states(plan(step)) == {"levante": "run"}


def test_leftovers_of_unfinished_writes_are_ignored(run: Runner, plan: Planner, prefix: str) -> None:
    step = winds()[0]
    run(step)
    for folder in (folder_of(prefix, step), Path(prefix) / ".runs", Path(prefix)):
        (folder / ".part-0123456789ab").write_bytes(b'{"half')
    assert states(plan(step)) == {"levante": "hit"}
    assert "hit" in plan_text(plan(step))


def test_a_folder_of_another_full_identity_is_an_error_and_never_a_hit(run: Runner, plan: Planner, prefix: str) -> None:
    step = winds()[0]
    run(step)
    entry = sorted(folder_of(prefix, step).glob(".log.*.json"))[-1]
    commit = json.loads(entry.read_bytes())
    stranger = commit["identity"][:8] + "f" * 56
    entry.write_text(json.dumps({**commit, "identity": stranger}))
    for options in ({}, {"force": ["levante"]}):
        with pytest.raises(UserError, match=f"belongs to identity {stranger}, not to .* Rename the step"):
            plan(step, **options)


def test_a_payload_of_another_full_identity_is_an_error(plan: Planner, prefix: str) -> None:
    [node] = build_graph([step := winds()[0]]).nodes
    stranger = node.identity[:8] + "0" * 56
    record = PayloadRecord(identity=stranger, payload=node.payload, run="other", time=0.0)
    StepFolder(prefix, node.folder_name).write_payload(record)
    for options in ({}, {"force": ["levante"]}):
        with pytest.raises(UserError, match="begins with the same eight digits"):
            plan(step, **options)


# -- records of other versions


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def test_a_log_entry_of_a_newer_format_asks_for_an_upgrade(run: Runner, plan: Planner, prefix: str) -> None:
    step = winds()[0]
    run(step)
    entry = sorted(folder_of(prefix, step).glob(".log.*.json"))[-1]
    for changes in ({"format": 2}, {"format": 2, "type": "suspend"}, {"format": 2, "time": "noon"}):
        original = entry.read_bytes()
        rewrite(entry, **changes)
        with pytest.raises(FormatError, match=r"has format 2; this version knows up to 1\. Upgrade ponente"):
            plan(step)
        entry.write_bytes(original)


def test_payloads_and_manifests_of_a_newer_format_ask_for_an_upgrade(run: Runner, plan: Planner, prefix: str) -> None:
    step = winds()[0]
    run(step)
    payload, manifest = folder_of(prefix, step) / ".payload.json", next(Path(prefix).glob(".runs/*/manifest.json"))
    rewrite(manifest, format=9, steps="changed")
    with pytest.raises(FormatError, match=r"manifest\.json has format 9.*Upgrade"):
        plan(winds(levante=5)[0])
    rewrite(payload, format=9)
    with pytest.raises(FormatError, match=r"payload\.json has format 9.*Upgrade"):
        plan(step, force=["levante"])


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b'{"type": "commit"', b"[]", b'{"type":"commit","format":1}'])
def test_a_damaged_record_is_named_and_is_no_hit(damage: bytes, run: Runner, plan: Planner, prefix: str) -> None:
    step = winds()[0]
    run(step)
    entry = sorted(folder_of(prefix, step).glob(".log.*.json"))[-1]
    entry.write_bytes(damage)
    with pytest.raises(FormatError, match=r"\.log\.000002\.json cannot be read"):
        plan(step)


# -- the prefix


@pytest.mark.parametrize(
    "form", ["prefix", "./prefix/", "prefix//", "x/../prefix", "{absolute}", "{absolute}/", "file://{absolute}"]
)
def test_every_way_to_write_a_prefix_means_the_same_place(
    form: str, run: Runner, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(*winds())
    planned = plan_steps(winds(), ExecutorOptions(prefix=form.format(absolute=prefix)))
    assert planned.prefix == prefix
    assert planned.of(State.RUN) == []


def test_the_prefix_is_the_flag_else_the_variable_else_a_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PONENTE_PREFIX", raising=False)
    assert plan_steps(winds(), ExecutorOptions()).prefix == str(tmp_path / "ponente-runs")
    monkeypatch.setenv("PONENTE_PREFIX", "elsewhere/")
    assert plan_steps(winds(), ExecutorOptions()).prefix == str(tmp_path / "elsewhere")
    assert plan_steps(winds(), ExecutorOptions(prefix="here")).prefix == str(tmp_path / "here")


def test_a_moved_prefix_keeps_its_hits(run: Runner, prefix: str, tmp_path: Path) -> None:
    run(*winds())
    shutil.move(prefix, tmp_path / "moved")
    planned = plan_steps(winds(), ExecutorOptions(prefix=str(tmp_path / "moved")))
    assert planned.of(State.RUN) == []
    assert Path(planned.steps[0].place("wind.txt")).read_text() == "1\n"


def test_a_prefix_that_is_a_file_is_refused(tmp_path: Path, plan: Planner) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/deeper/still"):
        with pytest.raises(UserError, match=r"file is a file; needed a folder\. Give another --prefix"):
            plan(*winds(), prefix=str(tmp_path / place))


def test_a_protocol_that_cannot_hold_a_graph_is_refused(plan: Planner) -> None:
    with pytest.raises(UserError, match=r"found ftp://host.*needed one of: file, gs, memory"):
        plan(*winds(), prefix="ftp://host/x")


@pytest.mark.parametrize("root", ["memory://", "memory:///"])
def test_the_root_of_a_store_is_a_prefix_too(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ExecutorOptions(prefix=root, launcher="driver")
    step = zoo.step({"at the root": root})
    assert run_steps([step], options).exit_code == 0
    assert [planned.state for planned in plan_steps([step], options).steps] == [State.HIT]
    assert list(tmp_path.iterdir()) == []


# -- nonblocking parents


def test_a_nonblocking_parent_is_neither_run_nor_waited_for_and_gives_its_state_folder(
    run: Runner, plan: Planner, prefix: str
) -> None:
    model = winds()[0]
    seen = folder_of(prefix, model) / "state"
    seen.mkdir(parents=True)
    (seen / "wind.txt").write_text("half-way\n")
    scores = ExecutorStep(name="scores", fn=blow, config=WindConfig(source=model.nonblocking() / "wind.txt"))
    assert [step.node.name for step in plan(scores).steps] == ["scores"]
    outcome = run(scores)
    assert Path(outcome.path(scores / "wind.txt")).read_text() == "half-way\n1\n"
    assert [step.planned.node.name for step in outcome.steps] == ["scores"]


# -- the plan as text


def test_the_plan_as_text_has_a_line_a_step_and_a_total(run: Runner, plan: Planner, prefix: str) -> None:
    run(*winds(ponente=-1), run_only=["ponente"])
    lines = plan_text(plan(*winds(ponente=-1))).splitlines()
    assert lines[0] == f"prefix {prefix}"
    assert [line.split()[0] for line in lines[1:4]] == ["hit", "held", "held"]
    assert lines[4] == "3 steps: 1 hit, 0 to run, 2 held"
    assert plan_text(plan(*winds(levante=2))).splitlines()[-1] == "3 steps: 0 hits, 3 to run"
