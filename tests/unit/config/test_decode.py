"""Raw trees to config classes: what each type takes, and what is said of what it does not."""

import enum
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, NewType, Optional

import draccus
import pytest

from ponente.config.decode import decode
from ponente.config.errors import RefusedError
from ponente.config.flags import parse_flags
from ponente.config.problems import ConfigError
from ponente.config.tree import Place, Tree


class Schedule(enum.StrEnum):
    COSINE = "cosine"
    INVERSE = "inv_sqrt"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, kw_only=True)
class Shape(draccus.ChoiceRegistry):
    label: str = ""

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "square"


@Shape.register_subclass("square")
@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: float = 1.0


@Shape.register_subclass("circle")
@dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    radius: float


@Shape.register_subclass("none")
@dataclass(frozen=True, kw_only=True)
class NoShape(Shape):
    pass


@dataclass(frozen=True, kw_only=True)
class Bare(draccus.ChoiceRegistry):
    pass


@Bare.register_subclass("one")
@dataclass(frozen=True, kw_only=True)
class One(Bare):
    pass


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 1
    heads: int = 1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"found {self.heads} heads; needed a number that divides {self.width}")


@dataclass(frozen=True, kw_only=True)
class Other:
    depth: int = 1
    size: int = 1


RunName = NewType("RunName", str)


@dataclass(frozen=True, kw_only=True)
class Outer:
    config_kind: ClassVar[str] = "identity"

    count: int = 0
    rate: float = 0.0
    flag: bool = False
    name: str = ""
    run: RunName = RunName("r")
    upload: str | None = None
    maybe: Optional[int] = None  # noqa: UP045
    steps: float | int = 0.01
    hub: bool | str = False
    text_or_int: str | int = 0
    text_or_float: str | float = 0.0
    batch: int | list[Inner] = 1
    urls: list[str] = field(default_factory=list)
    tags: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    plain: list = field(default_factory=list)  # type: ignore[type-arg]
    table: dict = field(default_factory=dict)  # type: ignore[type-arg]
    many_or_rate: list[str] | float = 0.0
    sizes: list[int] = field(default_factory=list)
    by_rate: dict[float, int] = field(default_factory=dict)
    by_schedule: dict[Schedule, int] = field(default_factory=dict)
    text_or_schedule: str | Schedule = ""
    either: "Inner | Other | None" = None
    derived: int = field(default=0, init=False)
    names: Sequence[str] = ()
    unique: frozenset[int] = frozenset()
    weights: dict[str, float] = field(default_factory=dict)
    by_step: Mapping[int, str] = field(default_factory=dict)
    staged: dict[str, float] | list[tuple[int, dict[str, float]]] = field(default_factory=dict)
    schedule: Schedule = Schedule.COSINE
    level: Level = Level.LOW
    literal: Literal["a", "b", 3] = "a"
    folder: Path | None = None
    like: os.PathLike[str] | None = None
    anything: Any = None
    inner: Inner = field(default_factory=Inner)
    optional: Inner | None = None
    shape: Shape = field(default_factory=Square)
    shapes: dict[str, Shape] = field(default_factory=dict)
    circle: Circle | None = None
    bare: Bare | None = None
    wait: timedelta = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Needy:
    tokenizer: str
    inner: Inner


def made(**raw: Any) -> Outer:
    return decode(Outer, Tree.of(raw))


def flagged(*flags: str) -> Outer:
    whole = Tree()
    for tree in parse_flags(flags):
        whole.overlay(tree)
    return decode(Outer, whole)


def error_of(raw: Mapping[str, Any], cls: type = Outer, also_known: tuple[str, ...] = ()) -> str:
    tree = Tree.of(raw)
    tree.places = {path: Place(where="c.yaml:3", written=".".join(path)) for path in paths_of(tree.raw)}
    with pytest.raises(ConfigError) as caught:
        decode(cls, tree, also_known)
    for problem in caught.value.problems:
        assert re.fullmatch(r"found .+; needed .+\. [A-Z].+\.", str(problem), re.DOTALL), str(problem)
    return str(caught.value)


def paths_of(raw: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    items = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return ([path] if path else []) + [found for key, item in items for found in paths_of(item, (*path, str(key)))]


# ---- values


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("count", 5, 5),
        ("count", 1e5, 100000),
        ("rate", 3, 3.0),
        ("rate", 1e-4, 1e-4),
        ("rate", "1E-4", 1e-4),
        ("flag", True, True),
        ("name", "x", "x"),
        ("name", 5, "5"),
        ("run", "x", "x"),
        ("upload", None, None),
        ("upload", 7, "7"),
        ("maybe", None, None),
        ("maybe", 4, 4),
        ("steps", 100, 100),
        ("steps", 0.5, 0.5),
        ("hub", True, True),
        ("hub", "repo@rev", "repo@rev"),
        ("hub", "true", "true"),
        ("text_or_int", 5, 5),
        ("text_or_int", "5", "5"),
        ("text_or_float", 5, 5.0),
        ("batch", 5, 5),
        ("batch", [{"width": 2}], [Inner(width=2)]),
        ("urls", ["a", "b"], ["a", "b"]),
        ("urls", "a.jsonl", ["a.jsonl"]),
        ("urls", [1, "b"], ["1", "b"]),
        ("tags", ["a"], ("a",)),
        ("tags", "a", ("a",)),
        ("pair", [1, "x"], (1, "x")),
        ("names", ["x"], ["x"]),
        ("plain", [1, None], [1, None]),
        ("by_rate", {"1e-3": 1}, {0.001: 1}),
        ("by_schedule", {"cosine": 1}, {Schedule.COSINE: 1}),
        ("text_or_schedule", "cosine", Schedule.COSINE),
        ("text_or_schedule", "other", "other"),
        ("either", {"depth": 2}, Other(depth=2)),
        ("table", {"a": [1]}, {"a": [1]}),
        ("many_or_rate", 5, 5.0),
        ("many_or_rate", "x", ["x"]),
        ("unique", [1, 1, 2], frozenset({1, 2})),
        ("weights", {"a": 1, "b": 0.5}, {"a": 1.0, "b": 0.5}),
        ("by_step", {"10": "x"}, {10: "x"}),
        ("staged", {"a": 1}, {"a": 1.0}),
        ("staged", [[0, {"a": 1}], [10, {"a": 0}]], [(0, {"a": 1.0}), (10, {"a": 0.0})]),
        ("schedule", "inv_sqrt", Schedule.INVERSE),
        ("schedule", "INVERSE", Schedule.INVERSE),
        ("level", 2, Level.HIGH),
        ("level", "HIGH", Level.HIGH),
        ("literal", "b", "b"),
        ("literal", 3, 3),
        ("folder", "/x/y", Path("/x/y")),
        ("like", "/x/y", Path("/x/y")),
        ("anything", {"a": [1, None]}, {"a": [1, None]}),
        ("inner", {"width": 4}, Inner(width=4)),
        ("inner", None, Inner()),
        ("optional", None, None),
        ("optional", {}, Inner()),
        ("shape", {"type": "circle", "radius": 2}, Circle(radius=2.0)),
        ("shape", {"side": 2}, Square(side=2.0)),
        ("shape", {"type": "none", "label": "x"}, NoShape(label="x")),
        ("shapes", {"my-a": {"type": "circle", "radius": 1}, "b": {}}, {"my-a": Circle(radius=1.0), "b": Square()}),
        ("circle", {"radius": 1}, Circle(radius=1.0)),
        ("circle", {"type": "circle", "radius": 1}, Circle(radius=1.0)),
        ("bare", {"type": "one"}, One()),
    ],
)
def test_each_type_takes_what_means_it(key: str, raw: Any, value: Any) -> None:
    got = getattr(made(**{key: raw}), key)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "raw", "needed"),
    [
        ("count", "5", "a whole number"),
        ("count", 1.5, "a whole number"),
        ("count", True, "a whole number"),
        ("count", None, "a whole number"),
        ("count", float("nan"), "a whole number"),
        ("rate", "fast", "a number"),
        ("rate", True, "a number"),
        ("rate", "nan", "a number"),
        ("flag", 1, "true or false"),
        ("flag", "true", "true or false"),
        ("flag", 1.0, "true or false"),
        ("sizes", 5, "a list of a whole number"),
        ("plain", 5j, "a list"),
        ("by_schedule.x", 5, "one of cosine, inv_sqrt"),
        ("literal", 3.0, "one of 3, a, b"),
        ("name", True, "text"),
        ("name", None, "text"),
        ("name", ["x"], "text"),
        ("maybe", "x", "a whole number or null"),
        ("steps", "x", "a number or a whole number"),
        ("urls", 5.0j, "a list of text"),
        ("urls", {"a": 1}, "a list of text"),
        ("urls", None, "a list of text"),
        ("pair", [1], "a list of 2: a whole number, text"),
        ("pair", [1, "x", 2], "a list of 2"),
        ("weights", [1], "keys with values"),
        ("weights.a", "x", "a number"),
        ("by_step.x", "x", "a whole number"),
        ("schedule", "cosin", "one of cosine, inv_sqrt"),
        ("level", 3, "one of 1, 2"),
        ("level", True, "one of 1, 2"),
        ("literal", "c", "one of 3, a, b"),
        ("folder", 5, "a path or null"),
        ("inner", 5, "keys (heads, width)"),
        ("shape", "circle", "keys with type: one of circle, none, square"),
        ("wait", 5, "a timedelta"),
    ],
)
def test_a_wrong_value_is_told_with_path_place_value_and_need(key: str, raw: Any, needed: str) -> None:
    outer, _, inner = key.partition(".")
    text = error_of({outer: {inner: raw} if inner else raw})
    shown = {None: "null", True: "true"}.get(raw) if raw is None or raw is True else repr(raw)
    if key not in ("by_step.x", "by_schedule.x"):
        assert f"found {key} (c.yaml:3) = {shown}; needed {needed}" in text
    assert key in text and needed in text


def test_a_bool_where_text_is_needed_is_told_to_be_quoted() -> None:
    assert "put quotes around it" in error_of({"name": True})
    assert "quotes" not in error_of({"count": True}) + error_of({"name": ["x"]})


def test_a_number_as_text_is_the_text_that_was_typed() -> None:
    tree = Tree.of({"name": 1.1, "upload": float("inf"), "urls": [1.0]})
    for path, text in {("name",): "1.10", ("upload",): "12e4567", ("urls", "0"): "1.0"}.items():
        tree.places[path] = Place(where="c.yaml:1", written=".".join(path), text=text)
    assert decode(Outer, tree) == Outer(name="1.10", upload="12e4567", urls=["1.0"])


def test_flags_say_text_where_text_is_needed() -> None:
    got = flagged("--name", "true", "--shape.type", "none", "--upload", "none", "--urls", "5", "--run", "{a: 1}")
    assert got == Outer(name="true", shape=NoShape(), upload=None, urls=["5"], run=RunName("{a: 1}"))
    assert flagged("--rate", "1E-4", "--hub", "true", "--hub", "org/x").hub == "org/x"
    with pytest.raises(ConfigError, match=r"name \(flag --name\) = true"):
        flagged("--name")
    with pytest.raises(ConfigError, match=r"urls \(flag --urls\) = null; needed a list of text"):
        flagged("--urls", "none")


def test_a_type_that_draccus_was_taught_is_decoded_by_it() -> None:
    @draccus.decode.register(Ohm)
    def ohm(raw: Any, path: Any = ()) -> Ohm:
        return Ohm(float(str(raw).removesuffix("ohm")))

    assert decode(Circuit, Tree.of({"load": "5ohm"})) == Circuit(load=Ohm(5.0))
    text = error_of({"load": "heavy"}, Circuit)
    assert "found load (c.yaml:3) = 'heavy'; needed a Ohm" in text


class Ohm(float):
    pass


@dataclass(frozen=True, kw_only=True)
class Circuit:
    load: Ohm


# ---- keys


def test_an_unknown_key_names_its_place_and_the_nearest_known_one() -> None:
    text = error_of({"inner": {"widht": 5}})
    assert text == (
        "found the unknown key inner.widht (c.yaml:3); needed a key that inner has: heads, width. "
        "Write width if that is what you mean."
    )
    text = error_of({"Rate": 1})
    assert "the unknown key Rate (c.yaml:3)" in text and "Write rate" in text


def test_an_unknown_key_like_no_other_is_to_be_removed_and_a_long_list_is_cut() -> None:
    text = error_of({"zzzzz": 5})
    assert "Remove it." in text and "the top level" in text and "in all)" in text


def test_a_field_that_the_class_works_out_itself_is_no_key() -> None:
    assert "the unknown key derived (c.yaml:3)" in error_of({"derived": 5})


def test_keys_of_another_choice_are_unknown_and_the_type_is_named() -> None:
    text = error_of({"shape": {"radius": 5}})
    assert "the unknown key shape.radius (c.yaml:3)" in text and "shape of type square has: label, side" in text
    assert "shapes.a.sid" in error_of({"shapes": {"a": {"sid": 1}}})


def test_an_unknown_type_names_the_nearest_registered_one() -> None:
    text = error_of({"shape": {"type": "circel", "radius": 5}})
    assert "found shape.type (c.yaml:3) = 'circel'; needed one of circle, none, square. Write circle" in text
    assert "Write circle if" in error_of({"shape": {"type": "circle_of_many_points"}})  # which it begins
    assert "registers it in plugins" in error_of({"shape": {"type": "qqq"}})
    assert "= null" in error_of({"shape": {"type": None}})
    assert "needed one of" in error_of({"shape": {"type": ["circle"]}})


def test_a_field_of_one_registered_class_takes_no_other_type() -> None:
    assert "needed one of circle" in error_of({"circle": {"type": "square", "radius": 1}})


def test_a_choice_without_a_default_needs_a_type() -> None:
    text = error_of({"bare": {}})
    assert "found no type in bare (c.yaml:3); needed type: one of one. Add bare.type." in text


def test_a_missing_key_is_told_with_its_section_and_type() -> None:
    text = error_of({"shape": {"type": "circle"}})
    assert text == "found no radius in shape (c.yaml:3); needed a number. Add shape.radius."
    text = error_of({}, Needy)
    assert "no tokenizer at the top level; needed text. Add tokenizer." in text and "no inner" in text


def test_all_problems_are_told_at_once() -> None:
    text = error_of({"count": "x", "inner": {"widht": 1}, "urls": [[], None], "weights": {"a": "x", "b": "y"}})
    assert text.startswith("6 problems in the configuration:")
    for path in ("count", "inner.widht", "urls.0", "urls.1", "weights.a", "weights.b"):
        assert f"{path} (c.yaml:3)" in text


def test_what_a_class_refuses_is_told_with_its_place() -> None:
    text = error_of({"inner": {"width": 3, "heads": 2}})
    assert "found inner (c.yaml:3) whose values do not go together: found 2 heads" in text
    assert "Change inner." in text


@dataclass(frozen=True, kw_only=True)
class Strict:
    size: int = 0

    def __post_init__(self) -> None:
        if self.size:
            raise RefusedError(f"found size: {self.size}; needed 0. Remove it.")
        raise RefusedError("found size 0; needed more, such as 1.5. Set size.")


@dataclass(frozen=True, kw_only=True)
class Broken:
    def __post_init__(self) -> None:
        raise TypeError("a defect of the class")


def test_a_refusal_is_the_users_matter_and_a_defect_is_not() -> None:
    assert error_of({}, Strict) == "found a configuration with size 0; needed more, such as 1.5. Set size."
    assert error_of({"size": 2}, Strict) == "found size (c.yaml:3) = 2; needed 0. Remove it."
    with pytest.raises(TypeError, match="a defect"):
        decode(Broken, Tree.of({}))


def test_problems_of_the_fitting_member_of_a_union_are_told() -> None:
    assert "optional.widht (c.yaml:3)" in error_of({"optional": {"widht": 1}})
    text = error_of({"either": {"depth": 1, "size": 1, "wdth": 1}})
    assert "either.wdth" in text and "depth, size" in text and "problems" not in text
    assert "batch.0.widht (c.yaml:3)" in error_of({"batch": [{"widht": 1}]})
    assert "staged.0.1.a (c.yaml:3) = 'x'" in error_of({"staged": [[0, {"a": "x"}]]})


def test_keys_that_the_user_may_have_meant_are_found_too() -> None:
    text = error_of({"modle": 1, "shapes": {"a": {"pakc": 2}}}, also_known=("model", "shapes.*.pack"))
    assert "Write model if" in text and "Write pack if" in text
    assert "Write pack" not in error_of({"pakc": 1}, also_known=("shapes.*.pack",))
    assert "Write pack" not in error_of({"inner": {"pakc": 1}}, also_known=("optional.pack",))
