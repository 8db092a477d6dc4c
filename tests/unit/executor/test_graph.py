"""The graph: each step once, parents first, each config walked once, cycles named."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import zoo

from ponente.config import UserError
from ponente.executor import ExecutorStep, this_output_path, this_state_path
from ponente.executor.graph import build_graph, matching


@dataclass(frozen=True, kw_only=True)
class Level:
    reads: ClassVar[list[str]] = []

    name: str
    left: Any = None
    right: Any = None

    def __getattribute__(self, field: str) -> Any:
        if field == "left":
            Level.reads.append(self.name)
        return super().__getattribute__(field)


def diamond(levels: int) -> ExecutorStep:
    """Each level needs the one below twice: 2 ** levels paths lead to the bottom."""
    step = zoo.step(Level(name="level-0"), name="level-0")
    for level in range(1, levels + 1):
        name = f"level-{level}"
        step = zoo.step(Level(name=name, left=step / "a", right=step / "b"), name=name)
    return step


def test_a_diamond_of_40_levels_has_41_nodes_and_each_config_is_read_once() -> None:
    top = diamond(40)
    Level.reads.clear()
    graph = build_graph([top])
    assert [node.name for node in graph.nodes] == [f"level-{level}" for level in range(41)]
    assert sorted(Level.reads) == sorted(node.name for node in graph.nodes)


def chain(length: int, first: Any = 0) -> ExecutorStep:
    step = zoo.step(first, name="link-0")
    for number in range(1, length):
        step = zoo.step([step], name=f"link-{number}")
    return step


def test_a_chain_of_5000_steps_hits_no_recursion_limit() -> None:
    graph = build_graph([chain(5000)])
    assert len(graph.nodes) == 5000
    assert [node.name for node in graph.nodes[:2]] == ["link-0", "link-1"]
    assert graph.nodes[-1].parents == [graph.nodes[-2]]


def test_parents_come_before_children() -> None:
    a, b = zoo.step(1, name="a"), zoo.step(2, name="b")
    both = zoo.step([b, a], name="both")
    last = zoo.step([a, both], name="last")
    order = [node.name for node in build_graph([last, b]).nodes]
    assert sorted(order) == ["a", "b", "both", "last"]
    assert order.index("both") > max(order.index("a"), order.index("b")) and order[-1] == "last"


def test_two_steps_of_equal_identity_are_one_node() -> None:
    one, two = zoo.step({"x": 1}), zoo.step({"x": 1})
    child = zoo.step([one / "a", two / "b"], name="child")
    graph = build_graph([child])
    assert [node.name for node in graph.nodes] == ["zoo/animal", "child"]
    assert graph.node_of(one) is graph.node_of(two)
    assert len(graph.nodes[1].parents) == 1


def test_a_pin_on_either_of_two_equal_steps_counts_and_two_different_pins_are_refused() -> None:
    pinned = zoo.step({"x": 1}, override_output_path="here")
    for targets in ([zoo.step({"x": 1}), pinned], [pinned, zoo.step({"x": 1})]):
        assert build_graph(targets).nodes[0].step.override_output_path == "here"
    with pytest.raises(UserError, match="pinned to both 'here' and 'there'; keep one"):
        build_graph([pinned, zoo.step({"x": 1}, override_output_path="there")])


def test_a_cycle_through_a_config_that_was_changed_later_is_named() -> None:
    config: dict[str, Any] = {}
    first = zoo.step(config, name="first")
    second = zoo.step([first], name="second")
    config["later"] = zoo.step({"third": second}, name="third")
    with pytest.raises(UserError) as caught:
        build_graph([zoo.step([first], name="outside")])
    assert "outside -> first -> third -> second -> first" in str(caught.value)
    assert "cannot need itself" in str(caught.value)


def test_a_step_that_needs_itself_is_a_cycle() -> None:
    config: list[Any] = []
    step = zoo.step(config, name="ouroboros")
    config.append(step)
    with pytest.raises(UserError, match="ouroboros -> ouroboros"):
        build_graph([step])


def test_a_nonblocking_parent_is_watched_and_not_among_what_is_run() -> None:
    ancestor = zoo.step(0, name="ancestor")
    model = zoo.step([ancestor], name="model")
    scores = zoo.step({"model": model.nonblocking() / "checkpoints"}, name="scores")
    graph = build_graph([scores])
    assert [node.name for node in graph.nodes] == ["scores"]
    assert {node.name for node in graph.watched} == {"ancestor", "model"}
    both = build_graph([scores, model])
    assert {node.name for node in both.nodes} == {"ancestor", "model", "scores"} and both.watched == []


def test_targets_may_be_nested_lists_and_must_be_steps() -> None:
    a, b = zoo.step(1, name="a"), zoo.step(2, name="b")
    assert {node.name for node in build_graph([a, [(b,)]]).nodes} == {"a", "b"}  # type: ignore[list-item]
    with pytest.raises(UserError, match="found 'a' among the steps"):
        build_graph(["a"])  # type: ignore[list-item]


@pytest.fixture
def nodes() -> Iterator[Any]:
    yield build_graph([zoo.step(1, name="data/raw"), zoo.step(2, name="data/clean"), zoo.step(3, name="model")]).nodes


def test_a_pattern_finds_steps_by_part_of_their_name_or_hash(nodes: Any) -> None:
    assert [node.name for node in matching(nodes, ["^data/raw$"], "--run_only")] == ["data/raw"]
    assert {node.name for node in matching(nodes, ["^data/"], "--run_only")} == {"data/raw", "data/clean"}
    assert [node.name for node in matching(nodes, [nodes[2].folder_name], "--force")] == ["model"]


def test_a_pattern_that_finds_nothing_or_is_none_is_refused_with_the_names_there_are(nodes: Any) -> None:
    with pytest.raises(UserError, match="--force 'dta', which matches no step") as caught:
        matching(nodes, ["data", "dta"], "--force")
    assert "data/raw, data/clean, model" in str(caught.value)
    with pytest.raises(UserError, match="no regular expression"):
        matching(nodes, ["("], "--run_only")


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", ".a", "a/.b", "a:b", "a*", "a?", "a{b}", " a", "a\nb", "a\\b"]
)
def test_names_that_would_make_bad_folders_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="found step name"):
        zoo.step(name=name)


@pytest.mark.parametrize("path", ["..", "a/../b", "/a"])
def test_a_handle_cannot_lead_out_of_its_step(path: str) -> None:
    with pytest.raises(UserError, match="needed a path below the step's folder"):
        zoo.parent / path
    with pytest.raises(UserError, match="needed a path below the step's folder"):
        (zoo.parent / "x") / path


def test_a_handle_used_as_text_is_an_error_that_says_what_to_do() -> None:
    for handle in (zoo.parent, zoo.parent / "x", zoo.parent.nonblocking(), this_output_path(), this_state_path("c")):
        with pytest.raises(UserError, match=r"used as text.*Put the handle itself into a config field"):
            f"{handle}/more"
    assert repr(zoo.parent) == "ExecutorStep('zoo/parent')"


def test_a_function_that_is_none_is_refused_when_the_step_is_made() -> None:
    with pytest.raises(ValueError, match="fn='act', which cannot be called"):
        ExecutorStep(name="x", fn="act")  # type: ignore[arg-type]
