"""The three kinds of config field: identity, execution, observation.

A field is identity unless it says otherwise: a change of it is a different result. Execution (resources, parallelism,
paths, retries) changes how a result is made; observation (trackers, tags, logs, cadence) changes what is seen of it.
Only identity fields enter a step's payload. A class may be of one kind as a whole (`config_kind`), and raises its
`identity_version` when a default or a kind changes its meaning.
"""

import dataclasses
import re
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_type_hints

_METADATA_KEY = "ponente.kind"


class Kind(StrEnum):
    """What a config field is for; only IDENTITY is hashed."""

    IDENTITY = "identity"
    EXECUTION = "execution"
    OBSERVATION = "observation"


def _field(kind: Kind, default: Any, default_factory: Any) -> Any:
    metadata = {_METADATA_KEY: kind}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def execution(
    default: Any = dataclasses.MISSING, *, default_factory: Callable[[], Any] | Any = dataclasses.MISSING
) -> Any:
    """A dataclass field that changes how a result is made, never which: `workers: int = execution(4)`."""
    return _field(Kind.EXECUTION, default, default_factory)


def observation(
    default: Any = dataclasses.MISSING, *, default_factory: Callable[[], Any] | Any = dataclasses.MISSING
) -> Any:
    """A dataclass field that changes what is seen of a result: `tags: tuple[str, ...] = observation(())`."""
    return _field(Kind.OBSERVATION, default, default_factory)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a config class: its name, kind and default (`MISSING` where it has none)."""

    name: str
    kind: Kind
    default: Any
    is_float: bool


def class_kind(cls: type) -> Kind:
    """The kind of a whole class: its `config_kind`, by default identity."""
    return Kind(getattr(cls, "config_kind", Kind.IDENTITY))


def _takes_float(hint: Any) -> bool:
    """Whether an int in a field of this type means the float of the same value."""
    if isinstance(hint, str):
        words = re.findall(r"\w+", hint)
        return "float" in words and "int" not in words
    return hint is float or (float in get_args(hint) and int not in get_args(hint))


@cache
def field_specs(cls: type) -> tuple[FieldSpec, ...]:
    """The fields of dataclass `cls` in order; a default factory is called once to know its default."""
    try:
        hints = get_type_hints(cls)
    except NameError:  # names that are imported for type checkers only
        hints = {field.name: field.type for field in dataclasses.fields(cls)}
    specs = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        is_float = _takes_float(hints[field.name])
        kind = Kind(field.metadata.get(_METADATA_KEY, class_kind(cls)))
        specs.append(FieldSpec(name=field.name, kind=kind, default=default, is_float=is_float))
    return tuple(specs)
