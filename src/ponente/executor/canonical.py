"""Config values as canonical JSON: the same text on every Python, process and hash seed.

In: any config value. Out: plain JSON in which only identity fields that differ from their defaults stand, each
dependency is an entry that waits for its identity, and secrets are masked; besides, the steps and secrets that were
met. Keys are sorted when it becomes text, floats are written by repr, sets in the order of their own texts.
"""

import dataclasses
import datetime
import json
import math
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from ponente.config.errors import UserError
from ponente.config.fields import FieldSpec, Kind, class_kind, field_specs
from ponente.executor.reference import refer
from ponente.executor.step import ExecutorStep, OwnPath, StepPath
from ponente.store.redaction import is_secret_name, may_be_secret_name, redact_value, secrets_of

Json = Any
OMIT = object()
_SHORTEST_TEXT_SECRET = 14
_PLAIN_KINDS = frozenset((int, bool, type(None)))


@dataclasses.dataclass(slots=True)
class StepReference:
    """A dependency found in a config: the step, and the payload entry that waits for its identity."""

    step: ExecutorStep
    blocking: bool
    entry: dict[str, Json]


class UnhashableError(UserError, TypeError):
    """A config holds something that has no stable text; names the field."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.where))}: {self.problem}"


def canonical_text(value: Json) -> str:
    """The one JSON text of a canonical value."""
    return _encode(value)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


class Canonical:
    """Turns config values into canonical JSON, collecting the steps that it meets."""

    def __init__(self, references: list[StepReference]) -> None:
        self._references = references
        self._secret_name = ""  # of the field or key that the value stands under, if it says secret
        self.secrets: list[str] = []
        self.classes: set[type] = set()  # config classes whose defaults the config rests on

    def of(self, value: Any) -> Json:
        kind = type(value)
        handler = _HANDLERS.get(kind)
        if handler is None:
            handler = _handler_of(kind)
            _HANDLERS[kind] = handler
        return handler(self, value)

    def text(self, value: str) -> Json:
        if self._secret_name or len(value) >= _SHORTEST_TEXT_SECRET:
            return self._masked(self._secret_name, value)
        return value

    def _under(self, name: str, value: Any) -> Json:
        """`value` with every text in it judged as a field called `name` is; dataclasses have names of their own."""
        before, self._secret_name = self._secret_name, name
        try:
            return self.of(value)
        finally:
            self._secret_name = before

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
            kind = type(value)
            if kind in _PLAIN_KINDS or (kind is float and math.isfinite(value)):
                canonical.append(value)  # what `of` would say, without the call: lists may be long
                continue
            try:
                item = self.of(value)
            except UnhashableError as error:
                error.where.append(f"[{position}]")
                raise
            if item is not OMIT:
                canonical.append(item)
        return canonical

    def set(self, values: Any) -> Json:
        return {"$set": sorted(self.sequence(values), key=canonical_text)}

    def mapping(self, values: dict[Any, Any]) -> Json:
        canonical: dict[str, Json] = {}
        pairs = []
        for key, value in values.items():
            try:
                item = self._under(key, value) if not self._secret_name and _says_secret(key) else self.of(value)
            except UnhashableError as error:
                error.where.append(f"[{key!r}]")
                raise
            if item is OMIT:
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

    def data(self, value: Any) -> Json:
        cls: type = type(value)
        plan = _class_plan(cls)
        self.classes.add(cls)
        before, self._secret_name = self._secret_name, ""
        self.secrets += plan.secrets
        canonical: dict[str, Json] = dict(plan.head)
        for name, default, plain_type, form, is_float, secret in plan.fields:
            item = getattr(value, name)
            kind = type(item)
            if is_float and kind is int:
                item, kind = float(item), float
            if item is default or (kind is plain_type and item == default):
                continue
            if kind in _PLAIN_KINDS or (kind is str and not secret and len(item) < _SHORTEST_TEXT_SECRET):
                canonical[name] = item  # what `of` would say, without the call: most fields are such
                continue
            try:
                found = self._under(name, item) if secret else self.of(item)
            except UnhashableError as error:
                error.where.append(f".{name}")
                raise
            if found is OMIT or (found == form and canonical_text(found) == canonical_text(form)):
                continue  # equal alone is not the same: 0.0 and -0.0, (1,) and (True,)
            canonical[name] = found
        for name, default, secret in plan.others:
            if (item := getattr(value, name)) is not default:
                self._look_over(name, item, secret)
        self._secret_name = before
        return canonical if plan.head else OMIT

    def _look_over(self, name: str, item: Any, secret: bool) -> None:
        """A field that is no part of identity: it must travel all the same, may hold secrets, and may hold no step."""
        known = len(self._references)
        try:
            _ = self._under(name, item) if secret else self.of(item)
            if len(self._references) > known:
                raise UnhashableError(
                    f"found step {self._references[-1].step.name!r} in a field that is no part of identity; what a "
                    "step reads is. Make it an identity field, without execution() or observation()"
                )
        except UnhashableError as error:
            error.where.append(f".{name}")
            raise


@dataclasses.dataclass(frozen=True, slots=True)
class _ClassPlan:
    """What to look at in each instance of a dataclass; `head` is empty where the whole class is no part of identity."""

    head: dict[str, Json]
    fields: tuple[tuple[str, Any, type | None, Json, bool, bool], ...]  # name, default, its type if plain, its form, …
    others: tuple[tuple[str, Any, bool], ...]  # fields that are not identity
    secrets: list[str]  # in defaults


_NO_DEFAULT = object()


@cache
def _class_plan(cls: type) -> _ClassPlan:
    _check_importable(cls)
    is_identity = class_kind(cls) is Kind.IDENTITY
    head: dict[str, Json] = {"$type": getattr(cls, "identity_name", cls.__qualname__)} if is_identity else {}
    version = getattr(cls, "identity_version", 1)
    if is_identity and version != 1:
        head["$version"] = version
    fields, others = [], []
    secrets: list[str] = []
    for spec in field_specs(cls):
        default, form = _default_of(spec, secrets)
        secret = _says_secret(spec.name)
        if is_identity and spec.kind is Kind.IDENTITY:
            plain_type = type(default) if type(default) in (*_PLAIN_KINDS, str) else None
            fields.append((spec.name, default, plain_type, form, spec.is_float, secret))
        else:
            others.append((spec.name, default, secret))
    return _ClassPlan(head=head, fields=tuple(fields), others=tuple(others), secrets=secrets)


def _default_of(spec: FieldSpec, secrets: list[str]) -> tuple[Any, Json]:
    """A field's default and its canonical form; neither where the field is to be told even at its default.

    That is so if the default holds a step, or a class whose `identity_version` was raised.
    """
    if spec.default is dataclasses.MISSING:
        return _NO_DEFAULT, _NO_DEFAULT
    default = float(spec.default) if spec.is_float and type(spec.default) is int else spec.default
    references: list[StepReference] = []
    canonical = Canonical(references)
    try:
        form = canonical._under(spec.name, default) if _says_secret(spec.name) else canonical.of(default)
    except UnhashableError as error:
        error.where.append(f".{spec.name}")
        raise
    secrets += canonical.secrets
    if references or (form is not OMIT and '"$version":' in canonical_text(form)):
        return _NO_DEFAULT, _NO_DEFAULT
    return default, form


@cache
def defaults_text(classes: frozenset[type]) -> str:
    """What `defaults_of` finds, as one JSON text, to be stored with a commit and compared at a glance."""
    return canonical_text(defaults_of(classes))


def defaults_of(classes: frozenset[type]) -> dict[str, str]:
    """The defaults that identity leaves out, as text, by `Class.field`; of classes that defaults hold, too."""
    found: dict[str, str] = {}
    for cls in classes:
        plan = _class_plan(cls)
        for name, default, _, form, _, _ in plan.fields:
            if default is not _NO_DEFAULT and form is not OMIT:
                found[f"{plan.head['$type']}.{name}"] = canonical_text(form)
            if dataclasses.is_dataclass(default) and not isinstance(default, type):
                found |= defaults_of(frozenset([type(default)]))
    return found


def _says_secret(name: Any) -> bool:
    return type(name) is str and (is_secret_name(name) or may_be_secret_name(name))


def _check_importable(cls: type) -> None:
    try:
        refer(cls)
    except TypeError as error:
        raise UnhashableError(str(error)) from error


_Handler = Callable[[Canonical, Any], Json]
_HANDLERS: dict[type, _Handler] = {
    str: Canonical.text,
    bool: Canonical.plain,
    int: Canonical.plain,
    type(None): Canonical.plain,
    float: Canonical.number,
    list: Canonical.sequence,
    tuple: Canonical.sequence,
    dict: Canonical.mapping,
    set: Canonical.set,
    frozenset: Canonical.set,
    datetime.datetime: Canonical.moment,
    datetime.date: Canonical.moment,
    datetime.timedelta: Canonical.duration,
    ExecutorStep: Canonical.step,
    StepPath: Canonical.step_path,
    OwnPath: Canonical.own_path,
}


def _handler_of(kind: type) -> _Handler:
    """The handler of a type met for the first time."""
    if issubclass(kind, ExecutorStep):
        return Canonical.step
    if issubclass(kind, Enum):
        _check_importable(kind)
        return Canonical.enum
    if issubclass(kind, PurePath):
        return Canonical.path
    if issubclass(kind, str):
        return lambda canonical, value: canonical.text(str(value))
    if issubclass(kind, int):
        return lambda canonical, value: int(value)
    if issubclass(kind, float):  # numpy.float64, say: it hashes as the number it is
        return lambda canonical, value: canonical.number(float(value))
    if dataclasses.is_dataclass(kind):
        return Canonical.data
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        _check_importable(kind)
        return Canonical.sequence
    raise UnhashableError(
        f"found a {kind.__module__}.{kind.__qualname__}, which has no stable text; needed plain values, lists, tuples, "
        "sets, dicts, enums, paths, dates, dataclasses or steps"
    )
