"""What differs between two payloads, to the exact field, through any number of dependencies.

In: two payloads and a way to look up those of their dependencies. Out: changes, each with the chain of steps that leads
to it and the field's path in the last of them. A change far up the graph is told once, where it was made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = Any
Lookup = Callable[[str, str], dict[str, Any] | None]  # (name, identity) -> payload

DEFAULT = "(default)"  # fields at their default are not in a payload


@dataclass(frozen=True)
class Change:
    """One field that differs. `steps` leads from the compared step to the one whose field it is."""

    steps: tuple[str, ...]
    field: str
    before: str
    after: str

    def __str__(self) -> str:
        chain = " <- ".join(self.steps[1:])
        where = f"{chain}: " if chain else ""
        return f"{where}{self.field} {self.before} -> {self.after}"


def changes(before: dict[str, Any], after: dict[str, Any], old: Lookup, new: Lookup) -> list[Change]:
    """All changes from `before` to `after`, nearest first; `old` and `new` look up dependencies' payloads."""
    return list(_Comparison(old, new).payloads(before, after, (str(after["name"]),)))


class _Comparison:
    def __init__(self, old: Lookup, new: Lookup) -> None:
        self._old = old
        self._new = new
        self._told: set[tuple[str, str]] = set()

    def payloads(self, before: dict[str, Any], after: dict[str, Any], steps: tuple[str, ...]) -> Iterator[Change]:
        for part in ("name", "kind"):
            if before.get(part) != after.get(part):
                yield Change(steps, part, _show(before.get(part)), _show(after.get(part)))
        yield from self._values(before.get("config"), after.get("config"), "config", steps)

    def _values(self, before: Json, after: Json, field: str, steps: tuple[str, ...]) -> Iterator[Change]:
        if before == after:
            return
        if _is_step(before) and _is_step(after):
            yield from self._references(before, after, field, steps)
        elif isinstance(before, dict) and isinstance(after, dict) and before.get("$type") == after.get("$type"):
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

    def _references(self, before: Json, after: Json, field: str, steps: tuple[str, ...]) -> Iterator[Change]:
        for part in ("name", "path", "nonblocking"):
            if before.get(part) != after.get(part):
                yield Change(steps, f"{field}.{part}", _show(before.get(part)), _show(after.get(part)))
        pair = (str(before["$step"]), str(after["$step"]))
        if pair[0] == pair[1] or pair in self._told:
            return
        self._told.add(pair)
        old = self._old(str(before["name"]), pair[0])
        new = self._new(str(after["name"]), pair[1])
        if old is None or new is None or before["name"] != after["name"]:
            yield Change(steps, field, _show(before), _show(after))
        else:
            yield from self.payloads(old, new, (*steps, str(after["name"])))


def _is_step(value: Json) -> bool:
    return isinstance(value, dict) and "$step" in value


def _show(value: Json) -> str:
    if value is None:
        return "None"
    if isinstance(value, dict):
        if "$step" in value:
            path = f"/{value['path']}" if value.get("path") else ""
            return f"step {value['name']}-{str(value['$step'])[:8]}{path}"
        for tag in ("$enum", "$float", "$time", "$seconds"):
            if tag in value:
                return str(value[tag])
        if "$this" in value:
            return f"this_{value['$this']}_path({value['path']!r})"
        head = value.get("$type", "")
        inner = ", ".join(f"{key}={_show(item)}" for key, item in value.items() if key != "$type")
        return _short(f"{head}({inner})" if head else f"{{{inner}}}")
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"
