"""Type hints of config classes, as the decoder sees them: their parts, and how an error names them.

In: what stands after the colon of a dataclass field. Out: members of unions, whether a raw value is already of a type
as it stands, and the type in words ("a whole number", "a list of text", "one of cosine, linear").
"""

import dataclasses
import enum
import os
import pathlib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union

import draccus
from draccus.choice_types import ChoiceType

from ponente.config.problems import one_of

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "any value",
    object: "any value",
}
_LISTS = (list, tuple, set, frozenset)


@cache
def field_hints(cls: type) -> dict[str, Any]:
    """The fields that a configuration may set, with their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@cache
def required(cls: type) -> frozenset[str]:
    """The fields without a default."""
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is missing and field.default_factory is missing
    )


def bare(hint: Any) -> Any:
    """`hint` without what only type checkers read: a NewType is what it stands for, a PathLike a Path."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if (typing.get_origin(hint) or hint) is os.PathLike:
        return pathlib.Path
    if isinstance(hint, typing.TypeVar):
        return hint.__bound__ or Any
    return hint


def members(hint: Any) -> tuple[Any, ...] | None:
    """The members of a union; None where `hint` is none."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(bare(member) for member in typing.get_args(hint))
    return None


def literals(hint: Any) -> tuple[Any, ...] | None:
    """The values of a Literal; None where `hint` is none."""
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else None


def is_choice(hint: Any) -> bool:
    """Whether `type:` picks among registered classes for this hint."""
    return typing.get_origin(hint) is None and isinstance(hint, type) and issubclass(hint, ChoiceType)


def is_dataclass(hint: Any) -> bool:
    """Whether this is a config class without choices."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def is_enum(hint: Any) -> bool:
    """Whether this is an Enum class."""
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def list_type(hint: Any) -> type | None:
    """The class to make of a list: list, tuple, set or frozenset; None for other hints."""
    origin = typing.get_origin(hint) or hint
    if origin in _LISTS:
        return typing.cast(type, origin)
    is_abstract = isinstance(origin, type) and origin not in (str, bytes) and issubclass(origin, Collection)
    if is_abstract and not issubclass(origin, Mapping) and origin.__module__ == "collections.abc":
        return list if issubclass(origin, Sequence) or origin is Collection else set
    return None


def is_mapping(hint: Any) -> bool:
    """Whether this is a dict with keys of the user's choosing."""
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Mapping)


def has_own_decoder(hint: Any) -> bool:
    """Whether somebody taught Draccus this very type (`draccus.decode.register`), such as a duration."""
    if not isinstance(hint, type) or hint in (bool, int, float, str):
        return False
    return draccus.decode.dispatch(hint) is not None


def is_exact(hint: Any, value: Any) -> bool:
    """Whether a raw value is of this type as it stands, with nothing to convert."""
    allowed = literals(hint)
    if allowed is not None:
        return any(value == one and type(value) is type(one) for one in allowed)
    if is_enum(hint):
        return any((value == one.value and type(value) is type(one.value)) or value == one.name for one in hint)
    if isinstance(value, dict):
        return is_choice(hint) or is_dataclass(hint) or is_mapping(hint)
    if isinstance(value, list):
        return list_type(hint) is not None
    return type(value) is hint


def takes_any_text(hint: Any) -> bool:
    """Whether nearly every value can be made to fit this type, so that it is tried last."""
    return hint is str or list_type(hint) is not None


def in_words(hint: Any) -> str:
    """The type as a phrase."""
    hint = bare(hint)
    options = members(hint)
    if options is not None:
        phrases = [in_words(option) for option in options]
        return ", ".join(phrases[:-1]) + " or " + phrases[-1]
    allowed = literals(hint)
    if allowed is not None:
        return f"one of {one_of(map(str, allowed))}"
    if is_enum(hint):
        return f"one of {one_of(str(one.value) for one in hint)}"
    if hint in _WORDS:
        return _WORDS[hint]
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return "a path"
    if list_type(hint) is not None:
        return _list_in_words(hint)
    if is_mapping(hint):
        return "keys with values"
    if is_choice(hint):
        return f"keys with type: one of {one_of(hint.get_known_choices())}"
    if is_dataclass(hint):
        return f"keys ({one_of(field_hints(hint))})"
    return f"a {getattr(hint, '__name__', hint)}"


def _list_in_words(hint: Any) -> str:
    items = [item for item in typing.get_args(hint) if item is not Ellipsis]
    if len(items) > 1:
        return f"a list of {len(items)}: {', '.join(in_words(item) for item in items)}"
    return f"a list of {in_words(items[0])}" if items and items[0] is not Any else "a list"
