"""Configs on their way to a step's process: JSON that keeps every type, with dependencies already paths.

`pack` writes a config, asking `resolve` for the place of each dependency; `unpack` makes the same value again in
another process, where the attempt's own places are known. Classes travel by name and are imported on arrival: this
JSON comes over a pipe from the driver, never from disk.
"""

import dataclasses
import datetime
from collections.abc import Callable
from enum import Enum, Flag
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ponente.executor.reference import Reference, load, refer
from ponente.executor.step import ExecutorStep, Own, OwnPath, StepPath

Json = Any
Resolve = Callable[[StepPath], str]
OwnPlaces = Callable[[Own, str], str]


def pack(value: Any, resolve: Resolve) -> Json:
    """`value` as JSON, each handle of another step as the path that `resolve` gives."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return _plain(value)
    if isinstance(value, ExecutorStep):
        return resolve(StepPath(value))
    if isinstance(value, StepPath):
        return resolve(value)
    if isinstance(value, OwnPath):
        return {"$own": [value.place.value, value.path]}
    if isinstance(value, Flag):  # several flags together are no member
        return {"$flag": [_name(type(value)), value.value]}
    if isinstance(value, Enum):
        return {"$enum": [_name(type(value)), value.name]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {"$data": [_name(type(value)), {name: pack(getattr(value, name), resolve) for name in fields}]}
    return _pack_container(value, resolve)


def _plain(value: Any) -> Json:
    """A plain value without the subclass it may come in (numpy.float64, say)."""
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return value if type(value) is base else base(value)
    return value


def _pack_container(value: Any, resolve: Resolve) -> Json:
    if isinstance(value, dict):
        return {"$dict": [[pack(key, resolve), pack(item, resolve)] for key, item in value.items()]}
    if isinstance(value, list):
        return [pack(item, resolve) for item in value]
    if isinstance(value, tuple):
        items = [pack(item, resolve) for item in value]
        return {"$named": [_name(type(value)), items]} if hasattr(value, "_fields") else {"$tuple": items}
    if isinstance(value, set | frozenset):
        return {"$set": [type(value).__name__, [pack(item, resolve) for item in value]]}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, datetime.timedelta):
        return {"$duration": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, datetime.datetime | datetime.date):
        return {"$time": [type(value).__name__, value.isoformat()]}
    raise TypeError(f"found a {type(value).__qualname__} in a config; it cannot travel to the step's process")


def _name(cls: type) -> Json:
    return msgspec.to_builtins(refer(cls))


def unpack(value: Json, own: OwnPlaces) -> Any:
    """The value that was packed; `own` gives the attempt's own places."""
    if isinstance(value, list):
        return [unpack(item, own) for item in value]
    if not isinstance(value, dict):
        return value
    [(tag, body)] = value.items()
    return _UNPACK[tag](body, own)


def _load(name: Json) -> Any:
    return load(msgspec.convert(name, Reference))


def _unpack_data(body: Json, own: OwnPlaces) -> Any:
    name, fields = body
    return _load(name)(**{key: unpack(item, own) for key, item in fields.items()})


def _unpack_set(body: Json, own: OwnPlaces) -> Any:
    name, items = body
    return (frozenset if name == "frozenset" else set)(unpack(item, own) for item in items)


def _unpack_time(body: Json, own: OwnPlaces) -> Any:
    name, text = body
    return (datetime.datetime if name == "datetime" else datetime.date).fromisoformat(text)


_UNPACK: dict[str, Callable[[Json, OwnPlaces], Any]] = {
    "$own": lambda body, own: own(Own(body[0]), body[1]),
    "$enum": lambda body, own: _load(body[0])[body[1]],
    "$flag": lambda body, own: _load(body[0])(body[1]),
    "$data": _unpack_data,
    "$dict": lambda body, own: {unpack(key, own): unpack(item, own) for key, item in body},
    "$tuple": lambda body, own: tuple(unpack(item, own) for item in body),
    "$named": lambda body, own: _load(body[0])(*(unpack(item, own) for item in body[1])),
    "$set": _unpack_set,
    "$path": lambda body, own: Path(body),
    "$duration": lambda body, own: datetime.timedelta(*body),
    "$time": _unpack_time,
}
