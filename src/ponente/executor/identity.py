"""Identity: a step's payload as plain JSON, and its sha256.

In: a step. Out: `{name, kind, config}` with each dependency as its own identity, never a path, and only identity fields
that differ from their defaults. The text that is hashed is the same on every Python, process and hash seed: keys are
sorted, floats are written by repr, sets by the order of their own text. Secrets are masked before hashing, so the
stored payload is the hashed one and a new key re-runs nothing.
"""

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from ponente.config.errors import UserError
from ponente.config.fields import Kind, class_kind, field_specs
from ponente.executor.reference import refer
from ponente.executor.step import ExecutorStep, OwnPath, StepPath, Versioned
from ponente.store.redaction import is_secret_name, may_be_secret_name, redact_value, secrets_of

Json = Any
_OMIT = object()
_SHORTEST_TEXT_SECRET = 14
_PLAIN_KINDS = frozenset((int, bool, type(None)))


@dataclasses.dataclass(slots=True)
class StepReference:
    """A dependency found in a config: the step, and the payload entry that waits for its identity."""

    step: ExecutorStep
    blocking: bool
    entry: dict[str, Json]


@dataclasses.dataclass(slots=True)
class Payload:
    """A step's payload whose dependencies' identities are still to be filled in."""

    content: dict[str, Json]
    references: list[StepReference]
    secrets: list[str]  # what was masked; for the redactor, never stored


class UnhashableError(UserError, TypeError):
    """A config holds something that has no stable text; names the field."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.where))}: {self.problem}"


def payload_of(step: ExecutorStep) -> Payload:
    """The payload of `step`, its dependencies still open (`fill` closes them)."""
    references: list[StepReference] = []
    refer(step.fn)  # refuses what the step's process could not import
    try:
        canonical = _Canonical(references)
        config = canonical.of(step.config)
    except UnhashableError as error:
        error.where.append(f"step {step.name!r}, config")
        raise
    content: dict[str, Json] = {"name": step.name, "kind": step.declared_kind}
    if config is not _OMIT and config is not None:
        content["config"] = config
    return Payload(content=content, references=references, secrets=canonical.secrets)


def identity_of(content: dict[str, Json]) -> str:
    """The sha256, in hex, of a payload whose dependencies are filled in."""
    return hashlib.sha256(canonical_text(content).encode("ascii")).hexdigest()


def canonical_text(value: Json) -> str:
    """The one JSON text of a canonical value."""
    return _encode(value)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


class _Canonical:
    """Turns config values into canonical JSON, collecting the steps that it meets."""

    def __init__(self, references: list[StepReference]) -> None:
        self._references = references
        self.secrets: list[str] = []

    def of(self, value: Any) -> Json:
        kind = type(value)
        handler = _HANDLERS.get(kind)
        if handler is None:
            handler = _handler_of(kind)
            _HANDLERS[kind] = handler
        return handler(self, value)

    def text(self, value: str) -> Json:
        return self._masked("", value) if len(value) >= _SHORTEST_TEXT_SECRET else value

    def _masked(self, name: str, value: str) -> str:
        masked = redact_value(name, value)
        if masked != value:
            self.secrets += secrets_of(name, value)
        return masked

    def plain(self, value: Any) -> Json:
        return value

    def number(self, value: float) -> Json:
        return value if math.isfinite(value) else {"$float": repr(value)}

    def sequence(self, values: Any) -> Json:
        canonical = []
        for position, value in enumerate(values):
            if type(value) in _PLAIN_KINDS:
                canonical.append(value)
                continue
            try:
                item = self.of(value)
            except UnhashableError as error:
                error.where.append(f"[{position}]")
                raise
            if item is not _OMIT:
                canonical.append(item)
        return canonical

    def set(self, values: Any) -> Json:
        return {"$set": sorted(self.sequence(values), key=canonical_text)}

    def mapping(self, values: dict[Any, Any]) -> Json:
        canonical: dict[str, Json] = {}
        pairs = []
        for key, value in values.items():
            try:
                item = self._masked(key, value) if type(key) is str and type(value) is str else self.of(value)
            except UnhashableError as error:
                error.where.append(f"[{key!r}]")
                raise
            if item is _OMIT:
                continue
            if type(key) is str and not key.startswith("$"):
                canonical[key] = item
            else:
                pairs.append([self.of(key), item])
        if pairs:
            canonical["$pairs"] = sorted(pairs, key=canonical_text)
        return canonical

    def enum(self, value: Enum) -> Json:
        return {"$enum": f"{type(value).__qualname__}.{value.name}"}

    def path(self, value: PurePath) -> Json:
        return self.text(value.as_posix())

    def moment(self, value: datetime.date) -> Json:
        return {"$time": value.isoformat()}

    def duration(self, value: datetime.timedelta) -> Json:
        return {"$seconds": repr(value.total_seconds())}

    def step(self, value: ExecutorStep) -> Json:
        return self._reference(StepPath(value))

    def step_path(self, value: StepPath) -> Json:
        return self._reference(value)

    def _reference(self, handle: StepPath) -> Json:
        entry: dict[str, Json] = {"$step": None, "name": handle.step.name}
        if handle.path:
            entry["path"] = handle.path
        if not handle.blocking:
            entry["nonblocking"] = True
        self._references.append(StepReference(step=handle.step, blocking=handle.blocking, entry=entry))
        return entry

    def own_path(self, value: OwnPath) -> Json:
        return {"$this": value.place.value, "path": value.path}

    def versioned(self, value: Versioned[Any]) -> Json:
        return self.of(value.value)

    def data(self, value: Any) -> Json:
        cls: type = type(value)
        plan = _class_plan(cls)
        if plan is None:
            return _OMIT
        canonical: dict[str, Json] = dict(plan.head)
        of = self.of
        for name, default, default_type, is_float, secret in plan.fields:
            item = getattr(value, name)
            if item is default:
                continue
            kind = type(item)
            if kind is Versioned:
                item = item.value
                kind = type(item)
            if is_float and kind is int:
                item, kind = float(item), float
            if kind is default_type and item == default:
                continue
            if kind in _PLAIN_KINDS or (kind is str and not secret and len(item) < _SHORTEST_TEXT_SECRET):
                canonical[name] = item  # what `of` would say, without the call: most fields are such
                continue
            try:
                found = self._masked(name, item) if secret and kind is str else of(item)
            except UnhashableError as error:
                error.where.append(f".{name}")
                raise
            if found is not _OMIT:
                canonical[name] = found
        return canonical


@dataclasses.dataclass(frozen=True, slots=True)
class _ClassPlan:
    head: dict[str, Json]
    fields: tuple[tuple[str, Any, type, bool, bool], ...]


@cache
def _class_plan(cls: type) -> _ClassPlan | None:
    """What to look at in each instance of a dataclass; None where the whole class is no part of identity."""
    _check_importable(cls)
    if class_kind(cls) is not Kind.IDENTITY:
        return None
    head: dict[str, Json] = {"$type": getattr(cls, "identity_name", cls.__qualname__)}
    version = getattr(cls, "identity_version", 1)
    if version != 1:
        head["$version"] = version
    fields = []
    for spec in field_specs(cls):
        if spec.kind is not Kind.IDENTITY:
            continue
        default = spec.default.value if isinstance(spec.default, Versioned) else spec.default
        if spec.is_float and type(default) is int:
            default = float(default)
        secret = is_secret_name(spec.name) or may_be_secret_name(spec.name)
        fields.append((spec.name, default, type(default), spec.is_float, secret))
    return _ClassPlan(head=head, fields=tuple(fields))


def _check_importable(cls: type) -> None:
    try:
        refer(cls)
    except TypeError as error:
        raise UnhashableError(str(error)) from error


_Handler = Callable[[_Canonical, Any], Json]
_HANDLERS: dict[type, _Handler] = {
    str: _Canonical.text,
    bool: _Canonical.plain,
    int: _Canonical.plain,
    type(None): _Canonical.plain,
    float: _Canonical.number,
    list: _Canonical.sequence,
    tuple: _Canonical.sequence,
    dict: _Canonical.mapping,
    set: _Canonical.set,
    frozenset: _Canonical.set,
    datetime.datetime: _Canonical.moment,
    datetime.date: _Canonical.moment,
    datetime.timedelta: _Canonical.duration,
    ExecutorStep: _Canonical.step,
    StepPath: _Canonical.step_path,
    OwnPath: _Canonical.own_path,
    Versioned: _Canonical.versioned,
}


def _handler_of(kind: type) -> _Handler:
    """The handler of a type met for the first time."""
    if issubclass(kind, ExecutorStep):
        return _Canonical.step
    if issubclass(kind, Enum):
        _check_importable(kind)
        return _Canonical.enum
    if issubclass(kind, PurePath):
        return _Canonical.path
    if issubclass(kind, str):
        return lambda canonical, value: canonical.text(str(value))
    if issubclass(kind, int):
        return lambda canonical, value: int(value)
    if issubclass(kind, float):  # numpy.float64, say: it hashes as the number it is
        return lambda canonical, value: canonical.number(float(value))
    if dataclasses.is_dataclass(kind):
        return _Canonical.data
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Canonical.sequence
    raise UnhashableError(
        f"found a {kind.__module__}.{kind.__qualname__}, which has no stable text; needed plain values, lists, tuples, "
        "sets, dicts, enums, paths, dates, dataclasses or steps"
    )
