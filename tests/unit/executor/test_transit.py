"""Configs arrive in the step's process as they left the script: every type, every value."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.executor import this_output_path, this_state_path
from ponente.executor.step import Own, StepPath
from ponente.executor.transit import pack, unpack


def resolve(handle: StepPath) -> str:
    return f"/prefix/{handle.step.name}/{handle.path}"


def own(place: Own, path: str) -> str:
    return f"/own/{place.value}/{path}"


def sent(value: Any) -> Any:
    return unpack(json.loads(json.dumps(pack(value, resolve))), own)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type at every depth; nan is nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(key, its) and same(value, other[its]) for (key, value), its in zip(one.items(), other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from([*zoo.Wind, *zoo.Season, *zoo.Level, zoo.Sail.MAIN, zoo.Sail.MAIN | zoo.Sail.JIB, zoo.Sail(0)])
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.timedeltas()
    | st.sampled_from([Path("a/b"), Path("/"), Path("with space"), Path(".")])
)
keys = st.none() | st.booleans() | st.text() | st.integers() | st.sampled_from(zoo.Wind) | st.tuples(st.integers())


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.text() | st.integers() | st.sampled_from(zoo.Wind), max_size=4)
        | st.frozensets(st.tuples(st.integers(), st.text()), max_size=4)
        | st.builds(zoo.Point, inner, inner)
        | st.builds(zoo.Train, data=inner, names=st.lists(st.text(), max_size=2), output=st.text(max_size=3))
    )


@settings(deadline=None, max_examples=150, database=None)
@given(st.recursive(scalars, containers, max_leaves=12))
def test_every_config_value_arrives_as_it_left(value: Any) -> None:
    assert same(sent(value), value)


def test_handles_arrive_as_paths() -> None:
    config = zoo.Train(data=[zoo.parent, zoo.parent / "a/b", {"own": this_output_path("x")}, this_state_path()])
    arrived = sent(config)
    assert arrived.data == ["/prefix/zoo/parent/", "/prefix/zoo/parent/a/b", {"own": "/own/output/x"}, "/own/state/"]
    assert arrived.output == "/own/output/model"


def test_dicts_that_look_like_marks_stay_dicts() -> None:
    value = {"$tuple": [1], "$own": ["output", "x"], "$data": None}
    assert sent(value) == value


def test_subclasses_of_numbers_and_texts_arrive_as_plain_ones() -> None:
    class Half(float):
        pass

    assert same(sent([Half(0.5)]), [0.5])


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(TypeError, match="found a object in a config; it cannot travel"):
        pack({"x": object()}, resolve)
