"""Patterns to files: braces and globs, on any filesystem that fsspec knows."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePath

import fsspec
from braceexpand import braceexpand

from ponente.store.paths import absolute, protocol_of

_GLOB_MARKS = "*?["
_NUMBER = re.compile(r"([0-9]+)")


def expand(patterns: str | PurePath | Iterable[str | PurePath]) -> list[str]:
    """The files that patterns mean, in absolute form: braces in their order, each glob sorted, numbers by their size.

    Dot-named files and folders (records, unfinished work) match only where a pattern spells the dot.

    Example: `expand("data/{00..03}.jsonl")` has four entries; `expand("data/*.jsonl")` those that are there.

    Raises:
        FileNotFoundError: a glob matches nothing. (A plain path is passed through: its reader names it if missing.)
    """
    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str | PurePath) else patterns:
        try:
            alternatives = list(braceexpand(str(pattern)))
        except ValueError as error:
            raise ValueError(
                f"found {str(pattern)!r} with braces that do not pair; write {{a,b}} or {{1..9}}"
            ) from error
        for alternative in alternatives:
            found += _glob(alternative) if _is_glob(alternative) else [absolute(alternative)]
    return found


def numbers_in_order(path: str) -> tuple[list[str | int], str]:
    """A key that sorts paths as people number files: "b500" stands before "b1000"."""
    parts = _NUMBER.split(path)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], path


def _is_glob(text: str) -> bool:
    if text.startswith(("http://", "https://")):  # where a question mark asks, and nothing can be listed
        return False
    return any(mark in text for mark in _GLOB_MARKS)


def _glob(pattern: str) -> list[str]:
    whole = absolute(pattern)
    protocol, parts = protocol_of(whole), whole.split("/")
    first = next(index for index, part in enumerate(parts) if _is_glob(part))
    spelt = [part for part in parts[first:] if part.startswith(".")]
    filesystem, inner = fsspec.core.url_to_fs(whole)
    infos = filesystem.glob(inner, detail=True)
    names = [str(name) for name, info in infos.items() if info["type"] != "directory"]
    matches = [name if protocol == "file" else absolute(f"{protocol}://{name}") for name in names]
    visible = [match for match in matches if _is_visible(match.split("/")[first:], spelt)]
    if not visible:
        raise FileNotFoundError(f"found no file that matches {pattern!r}; check the pattern and its folder")
    return sorted(visible, key=numbers_in_order)


def _is_visible(parts: list[str], spelt: list[str]) -> bool:
    dotted = [part for part in parts if part.startswith(".")]
    return all(any(fnmatchcase(part, pattern) for pattern in spelt) for part in dotted)
