"""Raw configuration to config classes: every key checked, every value of the type that its field declares.

In: a Tree in our spelling and a dataclass. Out: an instance, or a ConfigError that names every unknown key (with the
nearest known one), unknown `type:` and wrong value by path and place. `type:` picks among Draccus's registries, and
types that Draccus was taught are decoded by it; unions are decided here, by what the value is: Draccus takes the first
member that can be made to fit, so that an int becomes text in `str | int`.
"""

import typing
from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeVar

import draccus

from ponente.config import hints
from ponente.config.errors import UserError
from ponente.config.problems import ConfigError, Problem, nearest, one_of, shown
from ponente.config.scalars import is_number
from ponente.config.tree import Path, Tree

T = TypeVar("T")
_TYPE = "type"


def decode(cls: type[T], tree: Tree, also_known: Collection[str] = ()) -> T:
    """The instance of config class `cls` that `tree` describes.

    Args:
        also_known: key paths that the user may have meant although the class has none of them: keys of other commands
            and other spellings, which were taken out of the tree before. "data.components.*.pack" holds for all.
    """
    return typing.cast(T, _Decoder(tree, also_known).value(cls, tree.raw, ()))


class _Decoder:
    def __init__(self, tree: Tree, also_known: Collection[str]) -> None:
        self._tree = tree
        self._also_known = [tuple(path.split(".")) for path in also_known]

    def value(self, hint: Any, value: Any, path: Path) -> Any:
        """`value` as the type `hint`."""
        hint = hints.bare(hint)
        if hint is Any or hint is object:
            return value
        options = hints.members(hint)
        if options is not None:
            return self._union(hint, options, value, path)
        if hints.has_own_decoder(hint):
            return self._by_draccus(hint, value, path)
        if hints.is_choice(hint):
            return self._choice(hint, value, path)
        if hints.is_dataclass(hint):
            return self._dataclass(hint, value, path, known_as="")
        if hints.list_type(hint) is not None:
            return self._list(hint, value, path)
        if hints.is_mapping(hint):
            return self._mapping(hint, value, path)
        return self._scalar(hint, value, path)

    def _union(self, hint: Any, options: tuple[Any, ...], value: Any, path: Path) -> Any:
        exact = [option for option in options if hints.is_exact(option, value)]
        exact.sort(key=lambda option: hints.literals(option) is None and not hints.is_enum(option))
        errors = []
        for option in exact or sorted(options, key=hints.takes_any_text):
            try:
                return self.value(option, value, path)
            except ConfigError as error:
                errors.append(error)
        if exact and isinstance(value, dict | list):
            raise min(errors, key=lambda error: len(error.problems))
        raise self._mismatch(hint, value, path)

    def _choice(self, base: Any, value: Any, path: Path) -> Any:
        section = self._section(base, value, path)
        known = base.get_known_choices()
        own_name = next((name for name, cls in known.items() if cls is base), None)
        default = own_name or base.default_choice_name()
        name = section.get(_TYPE, default)
        if not isinstance(name, str):
            name = self._text(name, (*path, _TYPE))  # --adapter.type none
        if _TYPE not in section and default is None:
            raise ConfigError(
                Problem(
                    found=f"no type in {self._at(path) or 'the configuration'}",
                    needed=f"type: one of {one_of(known)}",
                    remedy=f"add {'.'.join([*path, _TYPE])}",
                )
            )
        if not isinstance(name, str) or name not in known or (own_name is not None and known[name] is not base):
            raise self._unknown_choice(name, [own_name] if own_name else list(known), (*path, _TYPE))
        rest = {key: item for key, item in section.items() if key != _TYPE}
        return self._dataclass(base.get_choice_class(name), rest, path, known_as=f" of type {name}")

    def _unknown_choice(self, name: Any, known: Collection[str], path: Path) -> ConfigError:
        close = nearest(str(name), known)
        remedy = f"write {close} if that is what you mean" if close else "name the module that registers it in plugins"
        found = f"{self._at(path)} = {shown(name)}"
        return ConfigError(Problem(found=found, needed=f"one of {one_of(known)}", remedy=remedy))

    def _dataclass(self, cls: Any, value: Any, path: Path, known_as: str) -> Any:
        fields = hints.field_hints(cls)
        section = self._section(cls, value, path)
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        for key, item in section.items():
            if key not in fields:
                problems.append(self._unknown_key((*path, key), list(fields), known_as))
                continue
            try:
                values[key] = self.value(fields[key], item, (*path, key))
            except ConfigError as error:
                problems += error.problems
        for key in [name for name in fields if name in hints.required(cls) and name not in section]:
            problems.append(self._missing((*path, key), fields[key]))
        if problems:
            raise ConfigError(*problems)
        return self._made(cls, values, path)

    def _made(self, cls: Any, values: dict[str, Any], path: Path) -> Any:
        try:
            return cls(**values)
        except (UserError, ValueError) as error:
            raise ConfigError(self._refusal(str(error), cls, values, path)) from error

    def _refusal(self, text: str, cls: Any, values: dict[str, Any], path: Path) -> Problem:
        """What a class says of its values, with their place: that of the key it begins with, or of all of them."""
        told = Problem.told(text)
        where = self._at(path) if path else "a configuration"
        if told is None:
            return Problem(
                found=f"{where} whose values do not go together: {text}",
                needed=f"values that {cls.__name__} accepts",
                remedy=f"change {'.'.join(path) or 'them'}",
            )
        key, colon, rest = told.found.partition(": ")
        if colon and key in values:
            return replace(told, found=f"{self._at((*path, key))} = {rest}")
        return replace(told, found=f"{where} with {told.found}")

    def _section(self, hint: Any, value: Any, path: Path) -> dict[str, Any]:
        """`value` as keys; `trainer:` with nothing below it has none."""
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise self._mismatch(hint, value, path)

    def _list(self, hint: Any, value: Any, path: Path) -> Any:
        make = hints.list_type(hint)
        args = typing.get_args(hint)
        if not isinstance(value, list):
            item = hints.bare(args[0]) if args else Any
            text = self._text(value, path)
            if value is None or text is None or item not in (str, Any):
                raise self._mismatch(hint, value, path)
            value = [text]  # one file for a list of files
        if make is tuple and args and Ellipsis not in args:
            if len(args) != len(value):
                raise self._mismatch(hint, value, path)
            kinds: list[Any] = list(args)
        else:
            kinds = [args[0] if args else Any] * len(value)
        return typing.cast(type, make)(self._all(kinds, [str(i) for i in range(len(value))], value, path))

    def _mapping(self, hint: Any, value: Any, path: Path) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self._mismatch(hint, value, path)
        key_hint, item_hint = typing.get_args(hint) or (str, Any)
        keys = [self._key(hints.bare(key_hint), key, path) for key in value]
        items = self._all([item_hint] * len(keys), list(value), list(value.values()), path)
        return dict(zip(keys, items, strict=True))

    def _key(self, hint: Any, key: str, path: Path) -> Any:
        if hint is int or hint is float:
            if not is_number(key):
                raise self._mismatch(hint, key, (*path, key))
            return hint(key)
        return self.value(hint, key, (*path, key)) if hint not in (str, Any) else key

    def _all(self, kinds: list[Any], names: list[str], values: list[Any], path: Path) -> list[Any]:
        """Several values below `path`; all their problems are told."""
        done: list[Any] = []
        problems: list[Problem] = []
        for kind, name, value in zip(kinds, names, values, strict=True):
            try:
                done.append(self.value(kind, value, (*path, name)))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(*problems)
        return done

    def _scalar(self, hint: Any, value: Any, path: Path) -> Any:
        text = self._text(value, path)
        if hint is str and text is not None:
            return text
        if hints.literals(hint) is not None or hints.is_enum(hint):
            return self._named(hint, value, text, path)
        if hint is float and isinstance(value, str) and is_number(value):
            return float(value.replace("_", ""))
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if hint is int and isinstance(value, float) and value.is_integer():  # 1e5 steps
            return int(value)
        if hints.is_exact(hint, value):
            return value
        raise self._mismatch(hint, value, path)

    def _named(self, hint: Any, value: Any, text: str | None, path: Path) -> Any:
        """A member of an Enum or a Literal."""
        for candidate in (value, text):
            if candidate is None or not hints.is_exact(hint, candidate):
                continue
            if not hints.is_enum(hint):
                return candidate
            by_value = [one for one in hint if one.value == candidate]
            return by_value[0] if by_value else hint[candidate]
        raise self._mismatch(hint, value, path)

    def _by_draccus(self, hint: Any, value: Any, path: Path) -> Any:
        if value is None:
            raise self._mismatch(hint, value, path)
        try:
            return draccus.decode(hint, value)
        except Exception as error:
            raise self._mismatch(hint, value, path) from error

    def _text(self, value: Any, path: Path) -> str | None:
        """A value as text: itself, or what was typed where it is a number or came by a flag; else None."""
        if isinstance(value, str):
            return value
        place = self._tree.places.get(path)
        if place is not None and place.text is not None:
            return place.text
        return str(value) if type(value) in (int, float) else None

    def _also_known_at(self, path: Path) -> list[str]:
        return [
            known[-1]
            for known in self._also_known
            if len(known) == len(path) + 1 and all(part in ("*", here) for part, here in zip(known, path, strict=False))
        ]

    def _at(self, path: Path) -> str:
        return str(self._tree.place(path))

    def _unknown_key(self, path: Path, known: list[str], known_as: str) -> Problem:
        close = nearest(path[-1], known + self._also_known_at(path[:-1]))
        section = f"{'.'.join(path[:-1])}{known_as}" if path[:-1] else "the top level"
        return Problem(
            found=f"the unknown key {self._at(path)}",
            needed=f"a key that {section} has: {one_of(known)}",
            remedy=f"write {close} if that is what you mean" if close else "remove it",
        )

    def _missing(self, path: Path, hint: Any) -> Problem:
        section = f"in {self._at(path[:-1])}" if path[:-1] else "at the top level"
        return Problem(found=f"no {path[-1]} {section}", needed=hints.in_words(hint), remedy=f"add {'.'.join(path)}")

    def _mismatch(self, hint: Any, value: Any, path: Path) -> ConfigError:
        remedy = f"change {self._tree.place(path).written}"
        if isinstance(value, bool) and hint is str:
            remedy += ", or put quotes around it if it is meant as text"
        return ConfigError(
            Problem(found=f"{self._at(path)} = {shown(value)}", needed=hints.in_words(hint), remedy=remedy)
        )
