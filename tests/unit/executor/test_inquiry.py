"""why, diff and adopt: which field, since which run, and that two steps are equivalent."""

import getpass
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zoo
from winds import WindConfig, blow, winds

from ponente.config import UserError
from ponente.executor import ExecutorStep
from ponente.executor.claim import take_claim
from ponente.executor.graph import build_graph
from ponente.executor.inquiry import Inquiry
from ponente.executor.manifest import Runs
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan, State
from ponente.executor.records import StepFolder

Runner = Callable[..., RunOutcome]
Planner = Callable[..., Plan]


def folder_name(step: ExecutorStep) -> str:
    return build_graph([step]).node_of(step).folder_name


def states(plan: Plan) -> dict[str, str]:
    return {step.node.name.removeprefix("winds/"): step.state.value for step in plan.steps}


# -- finding a step


@pytest.mark.parametrize("form", ["winds/ponente", "ponente", "{folder}", "{folder}/", "{prefix}/{folder}"])
def test_a_step_is_found_by_name_end_of_name_hash_or_folder(form: str, run: Runner, prefix: str) -> None:
    steps = winds()
    run(*steps)
    reference = form.format(folder=folder_name(steps[1]), prefix=prefix)
    assert Inquiry(prefix).find(reference).folder.name == folder_name(steps[1])


def test_a_folder_is_found_from_where_one_stands(run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*winds())
    monkeypatch.chdir(Path(prefix) / "winds")
    name = folder_name(winds()[1]).removeprefix("winds/")
    assert Inquiry(prefix).find(f"./{name}").folder.name == f"winds/{name}"


def test_an_unknown_step_is_refused_with_those_there_are(run: Runner, prefix: str) -> None:
    with pytest.raises(UserError, match=r"found no step 'x' under .*; it has no runs\. Name one, or give --script"):
        Inquiry(prefix).find("x")
    run(*winds())
    with pytest.raises(UserError, match="it has winds/levante, winds/ponente, winds/tramontana"):
        Inquiry(prefix).find("mistral")


def test_a_name_that_several_steps_share_is_refused_with_each_of_them(run: Runner, prefix: str) -> None:
    sweep = [zoo.step({"rate": rate}, name="train") for rate in (1, 2)]
    run(*sweep)
    with pytest.raises(UserError) as caught:
        Inquiry(prefix).find("train")
    assert all(folder_name(step) in str(caught.value) for step in sweep)
    assert Inquiry(prefix).find(folder_name(sweep[0])).payload["config"] == {"rate": 1}


def test_the_newest_run_says_what_a_name_means(run: Runner, prefix: str) -> None:
    run(*winds(ponente=5))
    run(*winds(ponente=6))
    assert Inquiry(prefix).find("ponente").payload["config"]["force"] == 6


# -- why


def test_why_names_the_field_two_dependencies_up_and_the_run_that_had_it_otherwise(run: Runner, prefix: str) -> None:
    run(*winds())
    before = Runs(prefix).names()[0]
    run(*winds(levante=9))
    lines = Inquiry(prefix).why("tramontana").splitlines()
    assert lines[0] == folder_name(winds(levante=9)[2])
    assert lines[1].startswith("  committed 20") and Runs(prefix).names()[0] in lines[1]
    assert lines[2].startswith("  that run planned it so: run, winds/ponente <- winds/levante: config.force")
    assert lines[3] == f"  run {before} had {folder_name(winds()[2])}; since then:"
    assert lines[4:] == ["    winds/ponente <- winds/levante: config.force (default) -> 9"]


def test_why_of_a_step_that_was_never_otherwise_says_so(run: Runner, prefix: str) -> None:
    run(*winds())
    assert "no earlier run has a step 'winds/levante' of another identity" in Inquiry(prefix).why("levante")


def test_why_of_a_step_that_has_not_run_is_answered_from_its_graph(run: Runner, prefix: str) -> None:
    run(*winds())
    told = Inquiry(prefix, build_graph(winds(ponente=8))).why("ponente")
    assert "  has not run\n" in told and "    config.force 2 -> 8\n" in told


def test_why_of_a_failed_step_has_its_error(run: Runner, prefix: str) -> None:
    run(*winds(levante=-3))
    told = Inquiry(prefix).why("levante")
    assert "  failed 20" in told and "ValueError: found force=-3; a wind cannot blow backwards" in told


def test_why_of_a_claimed_step_names_its_holder(prefix: str) -> None:
    step = winds()[0]
    assert take_claim(StepFolder(prefix, folder_name(step)), 0, "some-run") is not None
    assert "of run some-run" in Inquiry(prefix, build_graph([step])).why("levante")


def test_why_says_where_the_output_lies(run: Runner, prefix: str) -> None:
    outcome = run(*winds())
    assert outcome.path(winds_of(outcome)[0]) in Inquiry(prefix).why("levante")


def winds_of(outcome: RunOutcome) -> list[ExecutorStep]:
    return [step.planned.node.step for step in outcome.steps]


# -- diff


def test_two_steps_are_compared_field_by_field(run: Runner, prefix: str) -> None:
    one, two = winds(levante=2, ponente=4), winds(levante=3, ponente=5)
    run(*one)
    run(*two)
    assert Inquiry(prefix).diff(folder_name(one[1]), folder_name(two[1])).splitlines() == [
        f"{folder_name(one[1])} -> {folder_name(two[1])}",
        "  config.force 4 -> 5",
        "  winds/levante: config.force 2 -> 3",
    ]
    assert "no difference" in Inquiry(prefix).diff("ponente", folder_name(two[1]))


def test_a_step_may_be_compared_with_one_that_has_not_run(run: Runner, prefix: str) -> None:
    run(*winds())
    old, graph = folder_name(winds()[2]), build_graph(winds(tramontana=7))
    assert "  config.force 3 -> 7" in Inquiry(prefix, graph).diff(old, "tramontana").splitlines()


def test_two_runs_are_compared_step_by_step_each_change_once(run: Runner, prefix: str) -> None:
    run(*winds(), zoo.step(1, name="gone"))
    run(*winds(levante=5, tramontana=6), zoo.step(1, name="new"))
    newer, older = Runs(prefix).names()
    assert Inquiry(prefix).diff(older, newer).splitlines() == [
        f"only in {older}: {folder_name(zoo.step(1, name='gone'))}",
        f"only in {newer}: {folder_name(zoo.step(1, name='new'))}",
        "winds/levante: config.force (default) -> 5",
        "winds/tramontana: config.force 3 -> 6",
    ]
    assert Inquiry(prefix).diff(newer, newer) == "the two runs have the same steps\n"


def test_two_runs_of_a_sweep_are_compared_by_what_differs_whatever_the_order(run: Runner, prefix: str) -> None:
    run(*(zoo.step({"rate": rate}, name="train") for rate in (1, 2)))
    run(*(zoo.step({"rate": rate}, name="train") for rate in (3, 1)))
    newer, older = Runs(prefix).names()
    assert Inquiry(prefix).diff(older, newer) == "train: config.rate 2 -> 3\n"


# -- adopt


@pytest.fixture
def adopted(run: Runner, prefix: str) -> list[ExecutorStep]:
    """All three winds ran; then the second was renamed in kind, and the new one adopted the old one's result."""
    run(*winds())
    changed = renamed_winds()
    Inquiry(prefix, build_graph(changed)).adopt(folder_name(winds()[1]), folder_name(changed[1]), "only moved")
    return changed


def renamed_winds() -> list[ExecutorStep]:
    first = winds()[0]
    second = ExecutorStep(
        name="winds/ponente", fn=blow, config=WindConfig(force=2, source=first / "wind.txt"), kind="moved:blow"
    )
    third = ExecutorStep(name="winds/tramontana", fn=blow, config=WindConfig(force=3, source=second / "wind.txt"))
    return [first, second, third]


def test_without_adoption_the_changed_step_and_its_descendants_run(run: Runner, plan: Planner) -> None:
    run(*winds())
    assert states(plan(*renamed_winds())) == {"levante": "hit", "ponente": "run", "tramontana": "run"}


def test_the_adopting_step_and_descendants_with_results_from_before_are_hits(
    adopted: list[ExecutorStep], run: Runner, plan: Planner
) -> None:
    planned = plan(*adopted)
    assert states(planned) == {"levante": "hit", "ponente": "hit", "tramontana": "hit"}
    assert planned.steps[1].why == f"adopted from {folder_name(winds()[1])}: only moved"
    assert planned.steps[2].why == f"equal to {folder_name(winds()[2])}, because winds/ponente was adopted"
    outcome = run(*adopted)
    assert len(outcome.of(Fate.HIT)) == 3
    assert Path(outcome.path(adopted[2] / "wind.txt")).read_text() == "1\n2\n3\n"


def test_a_new_descendant_of_an_adopting_step_reads_the_adopted_output(
    adopted: list[ExecutorStep], run: Runner
) -> None:
    new = ExecutorStep(name="new", fn=blow, config=WindConfig(force=8, source=adopted[1] / "wind.txt"))
    assert Path(run(new).path(new / "wind.txt")).read_text() == "1\n2\n8\n"


def test_a_descendant_whose_old_output_is_gone_runs_again(
    adopted: list[ExecutorStep], run: Runner, plan: Planner, prefix: str
) -> None:
    shutil.rmtree(Path(prefix) / folder_name(winds()[2]) / "output-1")
    assert states(plan(*adopted)) == {"levante": "hit", "ponente": "hit", "tramontana": "run"}
    outcome = run(*adopted)
    assert Path(outcome.path(adopted[2] / "wind.txt")).read_text() == "1\n2\n3\n"


def test_adoption_is_recorded_with_who_and_why(adopted: list[ExecutorStep], prefix: str) -> None:
    folder = StepFolder(prefix, folder_name(adopted[1]))
    commit = folder.last_commit(folder.view())
    assert commit is not None and commit.adopted is not None
    assert commit.adopted.reason == "only moved"
    assert commit.adopted.who.startswith(f"{getpass.getuser()}@")
    assert commit.adopted.folder == folder_name(winds()[1])
    told = Inquiry(prefix).why(folder_name(adopted[1]))
    assert "adopted 20" in told and f"from {folder_name(winds()[1])} by {commit.adopted.who}: only moved" in told


def test_nothing_is_copied_by_an_adoption(adopted: list[ExecutorStep], prefix: str) -> None:
    assert not list((Path(prefix) / folder_name(adopted[1])).glob("output-*"))


def refused(prefix: str, steps: list[ExecutorStep], old: Any, new: Any, reason: str = "because") -> str:
    with pytest.raises(UserError) as caught:
        Inquiry(prefix, build_graph(steps)).adopt(folder_name(old), folder_name(new), reason)
    return str(caught.value)


def test_what_cannot_be_adopted_is_refused(run: Runner, prefix: str, plan: Planner) -> None:
    old, new = winds(), renamed_winds()
    failed = winds(ponente=-1)
    run(*old)
    run(*failed)
    every = [*old, *new, *failed]
    assert "has no result to adopt" in refused(prefix, every, new[1], old[1])
    assert "has no result to adopt" in refused(prefix, every, failed[1], new[1])
    assert "both names mean" in refused(prefix, every, old[1], old[1])
    assert "already has a result of its own" in refused(prefix, every, old[1], old[2])
    assert "empty --reason" in refused(prefix, every, old[1], new[1], reason="  ")
    shutil.rmtree(Path(prefix) / folder_name(old[2]) / "output-1")
    assert "no whole result to adopt" in refused(prefix, every, old[2], new[2])
    assert plan(*new).of(State.HIT)[0].node.name == "winds/levante" and len(plan(*new).of(State.HIT)) == 1


def test_a_step_that_is_running_cannot_adopt(run: Runner, prefix: str) -> None:
    run(*winds())
    new = renamed_winds()
    assert take_claim(StepFolder(prefix, folder_name(new[1])), 0, "some-run") is not None
    assert "is being run by process" in refused(prefix, new, winds()[1], new[1])


def test_a_step_that_failed_may_adopt(run: Runner, prefix: str, plan: Planner) -> None:
    failed = winds(ponente=-1)
    run(*failed)
    run(*winds())
    Inquiry(prefix, build_graph(failed)).adopt(folder_name(winds()[1]), folder_name(failed[1]), "good enough")
    assert states(plan(*failed))["ponente"] == "hit"


def test_secrets_in_a_reason_are_not_stored(run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct-horse")
    run(*winds())
    new = renamed_winds()
    Inquiry(prefix, build_graph(new)).adopt(folder_name(winds()[1]), folder_name(new[1]), "as correct-horse says")
    stored = b"".join(path.read_bytes() for path in Path(prefix).rglob("*") if path.is_file())
    assert b"correct-horse" not in stored and b"as *** says" in stored
