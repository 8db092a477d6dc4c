"""Raw trees: moving, overlaying and dropping values takes their places along."""

import pytest

from ponente.config.problems import ConfigError
from ponente.config.tree import Place, Tree


def tree(**lines: object) -> Tree:
    """Keys with values, each written in a line of its own."""
    made = Tree.of(lines)
    for number, key in enumerate(lines, start=1):
        made.places[key,] = Place(where=f"c:{number}", written=key)
    return made


def test_what_a_layer_replaces_leaves_no_place_behind() -> None:
    base = tree(a=[1.1])
    base.places["a", "0"] = Place(where="c:1", written="a.0", text="1.10")
    layer = tree(a=["x"])
    base.overlay(layer)
    assert base.raw == {"a": ["x"]} and base.places == layer.places


def test_overlaying_changes_nothing_of_the_layer() -> None:
    layer = tree(a={"b": [1]})
    base = Tree()
    base.overlay(layer)
    base.raw["a"]["b"].append(2)
    assert layer.raw == {"a": {"b": [1]}}


def test_a_moved_value_takes_its_places_and_joins_a_section_that_is_there() -> None:
    moving = tree(old={"x": 1, "y": 2}, new={"x": 1, "z": 3})
    moving.places["old", "y"] = Place(where="c:9", written="old.y")
    moving.move(("old",), ("new",))
    assert moving.raw == {"new": {"x": 1, "y": 2, "z": 3}}
    assert moving.place(("new", "y")).where == "c:9" and moving.place(("new", "z")).where == "c:2"
    assert not moving.has(("old",)) and ("old",) not in moving.places


@pytest.mark.parametrize(("one", "other"), [(1, 2), (1, True), ({"a": 1}, [1]), ([1], {"a": 1}), (None, 0)])
def test_two_values_of_one_thing_are_refused_with_both_places(one: object, other: object) -> None:
    with pytest.raises(ConfigError, match=r"old \(c:1\) = .* beside new \(c:2\) = .*Remove one of them; new is"):
        tree(old=one, new=other).move(("old",), ("new",))


def test_a_value_in_the_way_of_a_section_is_told_and_null_is_not_in_the_way() -> None:
    with pytest.raises(ConfigError, match=r"new \(c:2\) = 5 and, below it, old \(c:1\)"):
        tree(old=1, new=5).move(("old",), ("new", "x"))
    free = tree(old=1, new=None)
    free.move(("old",), ("new", "x"))
    assert free.raw == {"new": {"x": 1}}


def test_a_place_is_the_values_own_or_that_of_the_nearest_section() -> None:
    known = tree(a={"b": {"c": 1}})
    assert str(known.place(("a", "b", "c"))) == "a.b.c (c:1)"
    assert str(known.place(("zz",))) == "zz"


def test_a_pattern_drops_one_key_of_every_section() -> None:
    many = tree(a={"x": {"k": 1, "l": 2}, "y": {"k": 3}, "z": 5}, k=1)
    many.drop_matching(["a.*.k", "nothing.here"])
    assert many.raw == {"a": {"x": {"l": 2}, "y": {}, "z": 5}, "k": 1}
