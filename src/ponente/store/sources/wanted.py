"""The fields that somebody wants of a row: how JSON is decoded to just these, and what to say where that fails.

A field whose type admits None may be missing, and is None then; any other must be there.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec

_SHOWN_KEYS = 12


class Wanted:
    """The wanted fields as one msgspec Struct, made once a file."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)
        self._attributes = [f"field_{index}" for index in range(len(fields))]
        columns: list[Any] = [
            (attribute, type_, None) if admits_none(type_) else (attribute, type_)
            for attribute, type_ in zip(self._attributes, fields.values(), strict=True)
        ]
        names = dict(zip(self._attributes, fields, strict=True))
        self.row_type: Any = msgspec.defstruct("Row", columns, rename=names, gc=False, kw_only=True)

    def columns(self, rows: Sequence[Any]) -> dict[str, list[Any]]:
        """Decoded rows as one list a field."""
        return {
            name: list(map(attrgetter(attribute), rows))
            for name, attribute in zip(self.fields, self._attributes, strict=True)
        }

    def convert(self, row: Mapping[str, Any]) -> Any:
        """A row of values that Python made, as if it had been decoded; raises msgspec.ValidationError."""
        return msgspec.convert(dict(row), self.row_type)

    def describe(self) -> str:
        """The wanted fields for messages: "'text' (str)"."""
        return ", ".join(f"{name!r} ({type_name(type_)})" for name, type_ in self.fields.items())

    def fault_of_json(self, data: bytes, error: Exception) -> str:
        """What to say of the bytes of a row that could not be decoded."""
        if isinstance(error, msgspec.ValidationError):
            return self.fault_of_values(_decoded(data), error)
        if isinstance(error, UnicodeDecodeError):
            return f"found bytes that are not UTF-8 ({error}); needed UTF-8 text. Convert the file, or remove the row."
        return (
            f"found bytes that are not JSON ({error}); needed one JSON object with {self.describe()}. "
            "Correct or remove the row."
        )

    def fault_of_values(self, row: Any, error: msgspec.ValidationError) -> str:
        """What to say of a row whose values are not what is wanted."""
        found = str(error)
        if "missing required field" in found:
            keys = ", ".join(map(str, list(row)[:_SHOWN_KEYS])) if row else "none"
            found = f"an object without the key {found.split('`')[1]!r} (its keys: {keys})"
        return (
            f"found {found}; needed one object with {self.describe()}. "
            "Name the key that holds it in the format's config, or correct or remove the row."
        )

    def misfit(self, name: str, found: str) -> str:
        """What to say of a value that is not what is wanted."""
        return (
            f"found {found} as {name!r}; needed {type_name(self.fields[name])}. "
            "Correct or remove the row, or name another field in the format's config."
        )


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):  # a field that was passed over before
        return {}


def admits_none(type_: Any) -> bool:
    """Whether None is a value of this type (Any is not taken for one)."""
    return type_ is None or type_ is NoneType or NoneType in get_args(type_)


def without_none(type_: Any) -> Any:
    """`str` of `str | None`; other types as they are."""
    rest = [one for one in get_args(type_) if one is not NoneType]
    return rest[0] if admits_none(type_) and len(rest) == 1 else type_


def is_numbers(type_: Any) -> bool:
    """Whether a type is a list of int or float, which readers may hand over as a numpy array."""
    plain = without_none(type_)
    origin, args = get_origin(plain), get_args(plain)
    return isinstance(origin, type) and issubclass(origin, Sequence) and bool(args) and args[0] in (int, float)


def type_name(type_: Any) -> str:
    """How a type is called in messages."""
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_).replace("typing.", "")
