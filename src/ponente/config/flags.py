"""Flags to raw configuration: `--a.b.c value`, `--a.b.c=value`, and a bare `--a.flag` for true.

In: the arguments after the command's name. Out: one small Tree a flag, in order, to be laid over the file one after the
other, so the last wins. A value is read as YAML reads it: numbers, true, null, `["a", "b"]`, `{a: 1}`; `none` is null
too; anything else is the text as typed. A `{…}` gives the whole section and takes the place of what the file says.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ponente.config.document import parse_flow
from ponente.config.problems import ConfigError, Problem
from ponente.config.scalars import tag_of, value_of
from ponente.config.tree import Path, Place, Tree

_NAME = re.compile(r"[^\s.=]+(\.[^\s.=]+)*")
_NAMED_BY_USERS = {("data", "components"), ("data", "configs"), ("data", "train_weights")}  # their keys keep dashes


def parse_flags(arguments: Sequence[str], known: Mapping[str, Any] | None = None) -> list[Tree]:
    """The flags among `arguments`, each as a tree of its own.

    Args:
        known: what the file says. A dash in a flag's name means an underscore, unless the file has the very key.

    Example: `["--trainer.num-train-steps", "10", "--verbose"]` gives {"trainer": {"num_train_steps": 10}} and
    {"verbose": True}.
    """
    trees = []
    rest = list(arguments)
    while rest:
        name, value = _take(rest, arguments)
        path = _path(name, known or {})
        trees.append(_tree(f"flag --{name}", path, value))
    return trees


def _take(rest: list[str], arguments: Sequence[str]) -> tuple[str, str | None]:
    """The first flag of `rest`, and its value where it has one; both are taken away."""
    argument = rest.pop(0)
    if not argument.startswith("--"):
        taken = arguments[: len(arguments) - len(rest) - 1]
        raise ConfigError(
            Problem(
                found=f"the value {argument!r}{f' after {taken[-1]!r}' if taken else ''}, which belongs to no flag",
                needed="--name value, one value a flag",
                remedy="""write several values as one list: --name '["a", "b"]'""",
            )
        )
    name, equals, value = argument[2:].partition("=")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            Problem(
                found=f"{argument!r}, a flag without a name" if not name else f"{argument!r}, whose name has a gap",
                needed="--name or --section.name",
                remedy="write the name right after the two dashes, with one dot between its parts",
            )
        )
    if equals:
        return name, value
    return name, rest.pop(0) if rest and not rest[0].startswith("--") else None


def _path(name: str, known: Mapping[str, Any]) -> Path:
    path: Path = ()
    here: Any = known
    for part in name.split("."):
        is_kept = isinstance(here, Mapping) and part in here
        if not is_kept and path not in _NAMED_BY_USERS:
            part = part.replace("-", "_")
        path = (*path, part)
        here = here.get(part) if isinstance(here, Mapping) else None
    return path


def _tree(where: str, path: Path, text: str | None) -> Tree:
    value, below = _value(where, text)
    tree = Tree()
    tree.places[path] = Place(where=where, written=".".join(path), text=text, whole=isinstance(value, dict))
    for inner, place in below.items():
        written = ".".join([*path, *inner])
        tree.places[*path, *inner] = Place(where=where, written=written, text=place.text)
    for part in reversed(path):
        value = {part: value}
    tree.raw = value
    return tree


def _value(where: str, text: str | None) -> tuple[Any, dict[Path, Place]]:
    """A flag's value, and the places within it."""
    if text is None:
        return True, {}
    if text.lower() == "none":
        return None, {}
    if text[:1] in ("[", "{") or (text[:1] in ("'", '"') and len(text) > 1 and text[-1] == text[0]):
        try:
            tree = parse_flow(text)
        except ConfigError as error:
            raise _broken(where, text, error) from error
        return tree.raw["value"], {path[1:]: place for path, place in tree.places.items() if len(path) > 1}
    try:
        return (value_of(text, tag_of(text)) if text else text), {}
    except ValueError as error:  # a number of thousands of digits
        raise _broken(where, text, error) from error


def _broken(where: str, text: str, error: Exception) -> ConfigError:
    return ConfigError(
        Problem(
            found=f"{text!r} after {where} ({error})",
            needed="""a value as YAML writes it, such as 5, true, "a b", ["a", "b"] or {a: 1}""",
            remedy=f"quote it twice if it is meant as text: '\"{text[:20]}{'…' if len(text) > 20 else ''}\"'",
        )
    )
