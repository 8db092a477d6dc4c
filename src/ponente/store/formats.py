"""The format number that every small record carries, and what to say of a record that cannot be read."""

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from ponente.config.errors import UserError


class FormatError(UserError, ValueError):
    """A record that this version cannot read; names the file."""


class Versioned(Protocol):
    """A record that says which format it is in."""

    @property
    def format(self) -> int: ...


Record = TypeVar("Record", bound=Versioned)


def decode_record(path: str, data: bytes, decode: Callable[[bytes], Record], newest: int) -> Record:
    """What `decode` makes of a record's bytes; a FormatError if they are damaged or of a format above `newest`."""
    try:
        record = decode(data)
    except (msgspec.MsgspecError, json.JSONDecodeError, UnicodeDecodeError) as error:
        _refuse_newer(path, _format_in(data), newest)
        raise FormatError(f"{path} cannot be read ({error}); restore it, or remove it") from error
    _refuse_newer(path, record.format, newest)
    return record


def _refuse_newer(path: str, found: int, newest: int) -> None:
    if found > newest:
        raise FormatError(f"{path} has format {found}; this version knows up to {newest}. Upgrade ponente")


def _format_in(data: bytes) -> int:
    """The format number of a record that is not what was expected; 0 where it has none."""
    try:
        found = json.loads(data).get("format")
    except (ValueError, AttributeError):
        return 0
    return found if isinstance(found, int) else 0
