"""The three kinds of config field, and what is known of a class's fields."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Optional

import pytest

from ponente.config import Kind, execution, observation
from ponente.config.fields import class_kind, field_specs


@dataclass(frozen=True, kw_only=True)
class Mixed:
    plain: int
    rate: float = 1
    listed: list[int] = field(default_factory=lambda: [1])
    workers: int = execution(4)
    paths: list[str] = execution(default_factory=list)
    tags: tuple[str, ...] = observation(())
    needed: str = execution()


def test_a_field_is_identity_unless_it_says_otherwise() -> None:
    assert {spec.name: spec.kind for spec in field_specs(Mixed)} == {
        "plain": Kind.IDENTITY,
        "rate": Kind.IDENTITY,
        "listed": Kind.IDENTITY,
        "workers": Kind.EXECUTION,
        "paths": Kind.EXECUTION,
        "tags": Kind.OBSERVATION,
        "needed": Kind.EXECUTION,
    }


def test_defaults_are_known_also_where_a_factory_makes_them() -> None:
    assert {spec.name: spec.default for spec in field_specs(Mixed)} == {
        "plain": dataclasses.MISSING,
        "rate": 1,
        "listed": [1],
        "workers": 4,
        "paths": [],
        "tags": (),
        "needed": dataclasses.MISSING,
    }


def test_fields_with_a_kind_behave_as_dataclass_fields_do() -> None:
    assert Mixed(plain=1, needed="x").workers == 4
    assert Mixed(plain=1, needed="x").paths is not Mixed(plain=1, needed="x").paths
    with pytest.raises(TypeError, match="needed"):
        Mixed(plain=1)


@dataclass(frozen=True, kw_only=True)
class Floats:
    one: float
    two: float | None
    three: Optional[float]  # noqa: UP045
    four: "float"
    five: int | float
    six: int
    seven: str


def test_a_field_takes_floats_if_its_type_says_float_and_not_int() -> None:
    assert [spec.is_float for spec in field_specs(Floats)] == [True, True, True, True, False, False, False]


@dataclass(frozen=True, kw_only=True)
class Unresolved:
    other: "NotImportedHere"  # noqa: F821 (that is the point)
    rate: "float | None" = None
    count: "int | float" = 0


def test_a_type_that_cannot_be_resolved_hides_no_other() -> None:
    assert [(spec.name, spec.is_float) for spec in field_specs(Unresolved)] == [
        ("other", False),
        ("rate", True),
        ("count", False),
    ]


@dataclass(frozen=True, kw_only=True)
class Whole:
    config_kind: ClassVar[Kind] = Kind.EXECUTION

    count: int = 1
    tags: tuple[str, ...] = observation(())


def test_a_class_may_be_of_one_kind_as_a_whole() -> None:
    assert class_kind(Whole) is Kind.EXECUTION and class_kind(Mixed) is Kind.IDENTITY
    assert [spec.kind for spec in field_specs(Whole)] == [Kind.EXECUTION, Kind.OBSERVATION]
