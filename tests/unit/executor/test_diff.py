"""What differs is named to the exact field, through any number of dependencies, each change once."""

import datetime
import math
from typing import Any

import zoo

from ponente.executor import ExecutorStep, this_output_path
from ponente.executor.diff import Comparison
from ponente.executor.graph import Graph, build_graph


def told(before: ExecutorStep, after: ExecutorStep) -> list[str]:
    old, new = build_graph([before]), build_graph([after])
    comparison = Comparison(lookup(old), lookup(new))
    return list(map(str, comparison.changes(old.node_of(before).payload, new.node_of(after).payload)))


def lookup(graph: Graph) -> Any:
    return lambda name, identity: graph.by_identity[identity].payload if identity in graph.by_identity else None


def one(before: Any, after: Any) -> list[str]:
    return told(zoo.step(before), zoo.step(after))


def test_equal_payloads_have_no_changes() -> None:
    assert one(zoo.Train(steps=7), zoo.Train(steps=7)) == []


def test_each_changed_field_is_named_with_both_values() -> None:
    assert one(zoo.Train(steps=7, names=["a", "b"]), zoo.Train(steps=8, names=["a", "c"])) == [
        "config.steps 7 -> 8",
        "config.names[1] 'b' -> 'c'",
    ]


def test_a_field_at_its_default_is_shown_as_such() -> None:
    assert one(zoo.Train(), zoo.Train(steps=8)) == ["config.steps (default) -> 8"]
    assert one(zoo.Train(steps=8), zoo.Train()) == ["config.steps 8 -> (default)"]
    assert one(zoo.Train(), zoo.Train(optimizer=zoo.Optimizer(rate=1))) == [
        "config.optimizer (default) -> Optimizer(rate=1.0)"
    ]


def test_nested_fields_containers_of_other_lengths_and_other_classes_are_told() -> None:
    assert one({"a": [zoo.Optimizer(rate=1)]}, {"a": [zoo.Optimizer(rate=2)]}) == ["config.a[0].rate 1.0 -> 2.0"]
    assert one([1], [1, 2]) == ["config [1] -> [1, 2]"]
    assert one(zoo.Optimizer(), zoo.Renamed()) == ["config Optimizer() -> OldName($version=2)"]


def test_values_are_shown_as_people_write_them() -> None:
    assert one({"x": zoo.Wind.LEVANTE}, {"x": zoo.Wind.PONENTE}) == ["config.x Wind.LEVANTE -> Wind.PONENTE"]
    assert one({"x": {"a"}}, {"x": {"b", "c"}}) == ["config.x {'a'} -> {'b', 'c'}"]
    assert one({"x": math.nan}, {"x": datetime.date(2026, 1, 1)}) == ["config.x nan -> 2026-01-01"]
    assert one({"x": this_output_path("a")}, {"x": None}) == ["config.x this_output_path('a') -> None"]
    assert one({"x": {"k": 1}}, {"x": zoo.Optimizer(rate=2)}) == ["config.x {k=1} -> Optimizer(rate=2.0)"]


def test_values_that_are_equal_in_python_but_not_in_identity_are_told() -> None:
    assert one({"x": 1}, {"x": True}) == ["config.x 1 -> True"]
    assert one({"x": 1}, {"x": 1.0}) == ["config.x 1 -> 1.0"]


def test_a_changed_kind_is_told() -> None:
    assert told(zoo.step(kind="a"), zoo.step(kind="b")) == ["kind 'a' -> 'b'"]


def test_a_change_two_dependencies_away_is_named_with_the_way_to_it() -> None:
    def end(force: int) -> ExecutorStep:
        first = zoo.step({"force": force}, name="first")
        return zoo.step([zoo.step({"in": first / "x"}, name="second")], name="third")

    assert told(end(1), end(2)) == ["second <- first: config.force 1 -> 2"]


def test_a_change_that_many_ways_lead_to_is_told_once_by_the_shortest() -> None:
    def end(force: int) -> ExecutorStep:
        step = zoo.step({"force": force}, name="root")
        far = zoo.step([zoo.step([step], name="a")], name="b")
        return zoo.step([far, step, far / "x"], name="end")

    assert told(end(1), end(2)) == ["root: config.force 1 -> 2"]


def test_the_nearest_change_comes_first() -> None:
    def end(force: int) -> ExecutorStep:
        return zoo.step([zoo.step({"far": force}, name="root"), force], name="end")

    assert told(end(1), end(2)) == ["config[1] 1 -> 2", "root: config.far 1 -> 2"]


def test_another_dependency_another_path_and_no_more_waiting_are_told() -> None:
    a, b = zoo.step(1, name="a"), zoo.step(2, name="b")
    assert one([a / "x"], [a / "y"]) == ["config[0].path 'x' -> 'y'"]
    assert one([a], [a.nonblocking()]) == ["config[0].nonblocking None -> True"]
    changed = one([a], [b])
    assert changed[0] == "config[0].name 'a' -> 'b'"
    assert changed[1].startswith("config[0] step a-") and " -> step b-" in changed[1]


def test_a_dependency_whose_old_payload_is_lost_is_told_by_its_hash() -> None:
    old, new = (zoo.step([zoo.step(number, name="root")], name="end") for number in (1, 2))
    graph = build_graph([new])
    comparison = Comparison(lambda name, identity: None, lookup(graph))
    [change] = comparison.changes(build_graph([old]).node_of(old).payload, graph.node_of(new).payload)
    assert str(change).startswith("config[0] step root-")


def test_a_long_chain_is_compared_without_recursion_and_told_in_short() -> None:
    def end(force: int) -> ExecutorStep:
        step = zoo.step({"force": force}, name="link-0")
        for number in range(1, 3000):
            step = zoo.step([step], name=f"link-{number}")
        return step

    assert told(end(1), end(2)) == ["link-2998 <- link-2997 <- … <- link-0: config.force 1 -> 2"]


def test_a_diamond_of_40_levels_is_compared_in_40_steps() -> None:
    asked: list[str] = []

    def end(force: int) -> ExecutorStep:
        step = zoo.step({"force": force}, name="level-0")
        for level in range(1, 41):
            step = zoo.step({"left": step / "a", "right": step / "b"}, name=f"level-{level}")
        return step

    before, after = end(1), end(2)
    old, new = build_graph([before]), build_graph([after])
    comparison = Comparison(lambda name, key: asked.append(name) or lookup(old)(name, key), lookup(new))
    [change] = comparison.changes(old.node_of(before).payload, new.node_of(after).payload)
    assert change.field == "config.force"
    assert len(asked) <= 2 * 40


def test_long_values_are_shortened() -> None:
    [change] = one("x" * 500, "y" * 500)
    assert "… (502 characters)" in change and len(change) < 300
