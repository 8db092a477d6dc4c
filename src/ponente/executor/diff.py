"""What differs between two payloads, to the exact field, through any number of dependencies.

In: two payloads and a way to look up those of their dependencies. Out: changes, each with the chain of steps that leads
to it and the field's path in the last of them. A change far up the graph is told once, where it was made. Each pair of
dependencies is compared once, without recursion, however long the chains and however many steps ask.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ponente.executor.canonical import canonical_text

Json = Any
Lookup = Callable[[str, str], dict[str, Any] | None]  # (name, identity) -> payload

DEFAULT = "(default)"  # fields at their default are not in a payload
_TEXT_MARKS = ("$enum", "$float", "$time", "$seconds")
_GAP = "…"
_MAX_CHAIN = 5


@dataclass(frozen=True)
class Change:
    """One field that differs. `steps` leads from the compared step to the one whose field it is; a long way is cut."""

    steps: tuple[str, ...]
    field: str
    before: str
    after: str

    def seen_from(self, step: str) -> "Change":
        """The same change, for a step that depends on the one it was found for."""
        steps = (step, *self.steps)
        if len(steps) > _MAX_CHAIN:
            steps = (*steps[: _MAX_CHAIN - 2], _GAP, steps[-1])
        return Change(steps, self.field, self.before, self.after)

    def __str__(self) -> str:
        chain = " <- ".join(self.steps[1:])
        where = f"{chain}: " if chain else ""
        return f"{where}{self.field} {self.before} -> {self.after}"


@dataclass(frozen=True)
class _ChangedStep:
    """A dependency of the same name whose identity differs: the change is in its payload, or further up."""

    identities: tuple[str, str]
    before: dict[str, Any]
    after: dict[str, Any]


class Comparison:
    """Compares payloads; `old` and `new` look up those of dependencies."""

    def __init__(self, old: Lookup, new: Lookup) -> None:
        self._old = old
        self._new = new
        self._known: dict[tuple[str, str], list[Change]] = {}  # by the two identities of a dependency

    def changes(self, before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
        """All changes from `before` to `after`, nearest first."""
        root = _ChangedStep(("", ""), before, after)
        stack = [(root, list(self._payloads(before, after)))]
        while stack:
            step, found = stack[-1]
            further = [one for one in found if isinstance(one, _ChangedStep) and one.identities not in self._known]
            if further:
                stack.append((further[0], list(self._payloads(further[0].before, further[0].after))))
            else:
                stack.pop()
                self._known[step.identities] = self._joined(str(step.after["name"]), found)
        return self._known.pop(root.identities)

    def _joined(self, name: str, found: list[Change | _ChangedStep]) -> list[Change]:
        own = [one for one in found if isinstance(one, Change)]
        steps = [one for one in found if isinstance(one, _ChangedStep)]
        far = [change.seen_from(name) for step in steps for change in self._known[step.identities]]
        told: dict[tuple[str, str, str, str], Change] = {}
        for change in sorted([*own, *far], key=lambda change: len(change.steps)):
            told.setdefault((change.steps[-1], change.field, change.before, change.after), change)
        return list(told.values())

    def _payloads(self, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change | _ChangedStep]:
        steps = (str(after["name"]),)
        for part in ("name", "kind"):
            if before.get(part) != after.get(part):
                yield Change(steps, part, _show(before.get(part)), _show(after.get(part)))
        yield from self._values(before.get("config"), after.get("config"), "config", steps)

    def _values(self, before: Json, after: Json, field: str, steps: tuple[str, ...]) -> Iterator[Change | _ChangedStep]:
        if before == after and canonical_text(before) == canonical_text(after):  # 1 == True
            return
        if _is_step(before) and _is_step(after):
            yield from self._references(before, after, field, steps)
        elif _has_fields(before) and _has_fields(after) and before.get("$type") == after.get("$type"):
            for key in [*before, *(key for key in after if key not in before)]:
                name = f"{field}.{key}"
                if key not in before:
                    yield Change(steps, name, DEFAULT, _show(after[key]))
                elif key not in after:
                    yield Change(steps, name, _show(before[key]), DEFAULT)
                else:
                    yield from self._values(before[key], after[key], name, steps)
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for position, (old, new) in enumerate(zip(before, after, strict=True)):
                yield from self._values(old, new, f"{field}[{position}]", steps)
        else:
            yield Change(steps, field, _show(before), _show(after))

    def _references(
        self, before: Json, after: Json, field: str, steps: tuple[str, ...]
    ) -> Iterator[Change | _ChangedStep]:
        for part in ("name", "path", "nonblocking"):
            if before.get(part) != after.get(part):
                yield Change(steps, f"{field}.{part}", _show(before.get(part)), _show(after.get(part)))
        pair = (str(before["$step"]), str(after["$step"]))
        if pair[0] == pair[1]:
            return
        if pair in self._known:
            yield _ChangedStep(pair, {}, {})
            return
        old = self._old(str(before["name"]), pair[0])
        new = self._new(str(after["name"]), pair[1])
        if old is None or new is None or before["name"] != after["name"]:
            yield Change(steps, field, _show(before), _show(after))
        else:
            yield _ChangedStep(pair, old, new)


def _is_step(value: Json) -> bool:
    return isinstance(value, dict) and "$step" in value


def _has_fields(value: Json) -> bool:
    """Whether a value is a dataclass or dict, not one value under a mark: {"$enum": …}."""
    return isinstance(value, dict) and not any(mark in value for mark in ("$this", "$set", *_TEXT_MARKS))


def _show(value: Json) -> str:
    if value is None:
        return "None"
    if isinstance(value, dict):
        if "$step" in value:
            path = f"/{value['path']}" if value.get("path") else ""
            return f"step {value['name']}-{str(value['$step'])[:8]}{path}"
        for mark in _TEXT_MARKS:
            if mark in value:
                return str(value[mark])
        if "$set" in value:
            return _short(f"{{{', '.join(map(_show, value['$set']))}}}")
        if "$this" in value:
            return f"this_{value['$this']}_path({value['path']!r})"
        head = value.get("$type", "")
        inner = ", ".join(f"{key}={_show(item)}" for key, item in value.items() if key != "$type")
        return _short(f"{head}({inner})" if head else f"{{{inner}}}")
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"
