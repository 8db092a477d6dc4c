"""override_output_path: existing data is a hit, new output is published there, no identity changes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from winds import WindConfig, blow, winds

from ponente.config import UserError
from ponente.executor import ExecutorOptions, ExecutorStep, plan_steps, run_steps, this_output_path
from ponente.executor.graph import build_graph
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan
from ponente.store.volume import volume_of

Runner = Callable[..., RunOutcome]
Planner = Callable[..., Plan]


def pinned_winds(path: str) -> list[ExecutorStep]:
    """The three winds, the first of them pinned."""
    first = replace(winds()[0], override_output_path=path)
    second = ExecutorStep(name="winds/ponente", fn=blow, config=WindConfig(force=2, source=first / "wind.txt"))
    third = ExecutorStep(name="winds/tramontana", fn=blow, config=WindConfig(force=3, source=second / "wind.txt"))
    return [first, second, third]


def states(plan: Plan) -> list[str]:
    return [step.state.value for step in plan.steps]


def data_at(path: Path, text: str) -> str:
    path.mkdir(parents=True)
    (path / "wind.txt").write_text(text)
    return str(path)


def test_existing_data_is_a_hit_and_is_what_descendants_read(run: Runner, plan: Planner, tmp_path: Path) -> None:
    pinned = pinned_winds(data_at(tmp_path / "data", "breeze\n"))
    planned = plan(*pinned)
    assert states(planned) == ["hit", "run", "run"]
    assert planned.steps[0].why == f"pinned to {tmp_path / 'data'}"
    outcome = run(*pinned)
    assert [step.planned.node.name for step in outcome.of(Fate.DONE)] == ["winds/ponente", "winds/tramontana"]
    assert Path(outcome.path(pinned[2] / "wind.txt")).read_text() == "breeze\n2\n3\n"
    assert outcome.path(pinned[0]) == str(tmp_path / "data")


def test_a_pin_changes_no_identity_of_the_step_or_its_descendants(tmp_path: Path) -> None:
    plain, pinned = build_graph(winds()), build_graph(pinned_winds(str(tmp_path)))
    assert [node.identity for node in plain.nodes] == [node.identity for node in pinned.nodes]


def test_a_pin_added_after_a_run_leaves_descendants_hits(run: Runner, plan: Planner, tmp_path: Path) -> None:
    run(*winds())
    assert states(plan(*pinned_winds(data_at(tmp_path / "data", "1\n")))) == ["hit", "hit", "hit"]


def test_where_nothing_is_the_step_runs_and_publishes_there(run: Runner, plan: Planner, tmp_path: Path) -> None:
    place = tmp_path / "published" / "here"
    pinned = pinned_winds(f"{place}/")
    assert states(plan(*pinned)) == ["run", "run", "run"]
    assert not place.parent.exists()
    outcome = run(*pinned)
    assert outcome.exit_code == 0
    assert (place / "wind.txt").read_text() == "1\n"
    assert [path.name for path in place.parent.iterdir()] == ["here"]
    assert outcome.path(pinned[0] / "wind.txt") == str(place / "wind.txt")
    assert states(plan(*pinned)) == ["hit", "hit", "hit"]
    assert states(plan(*winds())) == ["hit", "hit", "hit"], "the commit names the place, so the pin may go again"


def test_a_relative_pin_is_taken_from_the_prefix(run: Runner, plan: Planner, prefix: str) -> None:
    pinned = pinned_winds("shared/breeze")
    assert run(pinned[0]).exit_code == 0
    assert (Path(prefix) / "shared" / "breeze" / "wind.txt").read_text() == "1\n"
    assert states(plan(pinned[0])) == ["hit"]


def test_a_failed_attempt_publishes_nothing_at_the_pin(run: Runner, tmp_path: Path) -> None:
    failing = replace(winds(levante=-1)[0], override_output_path=str(tmp_path / "data" / "here"))
    assert run(failing).exit_code == 1
    assert not (tmp_path / "data" / "here").exists()
    assert list((tmp_path / "data").iterdir()) == []


def test_a_pin_to_another_steps_folder_means_its_committed_output(run: Runner, prefix: str, tmp_path: Path) -> None:
    other = ExecutorStep(name="other/wind", fn=blow, config=WindConfig(force=70))
    made = run(other)
    folder = Path(prefix) / build_graph([other]).nodes[0].folder_name
    for form in (str(folder), str(folder.relative_to(prefix)), f"{folder}/"):
        pinned = pinned_winds(form)
        outcome = run(pinned[1])
        assert outcome.path(pinned[0]) == made.path(other)
        assert Path(outcome.path(pinned[1] / "wind.txt")).read_text() == "70\n2\n"


def test_a_pin_to_the_folder_of_a_step_that_has_not_finished_is_refused(
    run: Runner, plan: Planner, prefix: str
) -> None:
    failing = ExecutorStep(name="other/wind", fn=blow, config=WindConfig(force=-1))
    run(failing)
    with pytest.raises(UserError, match="folder of a step that has not finished; run that step first"):
        plan(*pinned_winds(build_graph([failing]).nodes[0].folder_name))


def test_force_on_a_step_that_is_pinned_to_existing_data_is_refused(run: Runner, plan: Planner, tmp_path: Path) -> None:
    pinned = pinned_winds(data_at(tmp_path / "data", "breeze\n"))
    with pytest.raises(UserError, match=r"found --force for winds/levante-.* is pinned to .*; remove what is there"):
        plan(*pinned, force=["levante"])
    assert states(plan(*pinned, force=["ponente"])) == ["hit", "run", "run"]


def test_two_steps_may_share_existing_data_but_not_publish_at_one_place(plan: Planner, tmp_path: Path) -> None:
    place = tmp_path / "data"
    sharing = [
        replace(step, override_output_path=form)
        for step, form in zip(winds(levante=7)[:1] + winds(levante=8)[:1], (str(place), f"{place}/"), strict=True)
    ]
    with pytest.raises(UserError, match=r"both pinned to .*/data, where nothing is yet.*give each a place of its own"):
        plan(*sharing)
    data_at(place, "breeze\n")
    assert states(plan(*sharing)) == ["hit", "hit"]


def test_a_file_can_be_pinned(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "breeze.txt").write_text("calm\n")
    first = replace(winds()[0], override_output_path=str(tmp_path / "breeze.txt"))
    second = ExecutorStep(name="winds/ponente", fn=blow, config=WindConfig(force=2, source=first))
    assert Path(run(second).path(second / "wind.txt")).read_text() == "calm\n2\n"


def write_url(config: dict[str, Any]) -> None:
    text = volume_of(config["in"]).read(config["in"]) if config.get("in") else b""
    volume_of(config["out"]).create(config["out"], text + b"x")


def test_pins_work_on_a_store_without_rename_too(memory_prefix: str) -> None:
    first = ExecutorStep(
        name="first",
        fn=write_url,
        config={"out": this_output_path("a")},
        override_output_path=f"{memory_prefix}/there/x",
    )
    second = ExecutorStep(name="second", fn=write_url, config={"in": first / "a", "out": this_output_path("b")})
    options = ExecutorOptions(prefix=memory_prefix, launcher="driver")
    assert states(plan_steps([second], options)) == ["run", "run"]
    outcome = run_steps([second], options)
    assert volume_of(memory_prefix).read(outcome.path(second / "b")) == b"xx"
    assert states(plan_steps([first, second], options)) == ["hit", "hit"]
    assert volume_of(memory_prefix).read(plan_steps([first], options).steps[0].place("a")) == b"x"
