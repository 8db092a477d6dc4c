"""Scalars of YAML as users mean them: the one table that reading, flags and snapshots share.

In: the text of an unquoted scalar. Out: null, a bool, a number, or the text itself. As YAML 1.2 has it, `1E-4` is a
number; `12:30`, `0123` and `2024-01-01` are text, for they are times, revisions and names here. `yes` and `on` are
true, as in the files that users bring.
"""

import re
from typing import Any

_TAG = "tag:yaml.org,2002:"
NULL, BOOL, INT, FLOAT = (_TAG + name for name in ("null", "bool", "int", "float"))
MERGE, STR, MAP, SEQ = (_TAG + name for name in ("merge", "str", "map", "seq"))

_PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {  # with the characters that a match can begin with
    NULL: (re.compile(r"~|null|Null|NULL|"), "~nN"),
    BOOL: (re.compile(r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"), "yYnNtTfFoO"),
    INT: (re.compile(r"[-+]?(0b[01][01_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0|[1-9][0-9_]*)"), "-+0123456789"),
    FLOAT: (
        re.compile(
            r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|"
            r"[0-9][0-9_]*[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
    MERGE: (re.compile(r"<<"), "<"),
}


def implicit_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The table in the form that PyYAML's loaders and dumpers keep it."""
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {"": [(NULL, re.compile("^$"))]}
    for tag, (pattern, starts) in _PATTERNS.items():
        for start in starts:
            table.setdefault(start, []).append((tag, re.compile(f"^(?:{pattern.pattern})$")))
    return table


def tag_of(text: str) -> str:
    """The YAML tag of an unquoted scalar."""
    return next((tag for tag, (pattern, _) in _PATTERNS.items() if pattern.fullmatch(text)), STR)


def value_of(text: str, tag: str) -> Any:
    """The value of a scalar with this tag; a ValueError where the text is none of its kind (`!!int x`)."""
    if (
        tag in _PATTERNS
        and tag != MERGE
        and not _PATTERNS[tag][0].fullmatch(text)
        and not (tag == FLOAT and _PATTERNS[INT][0].fullmatch(text))
    ):
        raise ValueError(f"{text!r} is no {tag.removeprefix(_TAG)}")
    if tag == NULL:
        return None
    if tag == BOOL:
        return text.lower() in ("yes", "true", "on")
    if tag == INT:
        return _integer(text.replace("_", ""))
    if tag == FLOAT:
        return _real(text.replace("_", "").lower())
    return text


def is_number(text: str) -> bool:
    """Whether an unquoted scalar would be a number."""
    return tag_of(text) in (INT, FLOAT)


def _integer(text: str) -> int:
    digits = text.lstrip("+-").lower()
    base = {"0x": 16, "0b": 2}.get(digits[:2], 10)
    return int(text, base)


def _real(text: str) -> float:
    if text.lstrip("+-") in (".inf", ".nan"):
        return float(text.replace(".", ""))
    return float(_integer(text)) if _PATTERNS[INT][0].fullmatch(text) else float(text)
