"""What is wrong with a configuration, in three parts: what was found and where, what was needed, what to do.

In: the parts, as phrases. Out: a ConfigError that tells of one problem or of several at once, so that a file with five
mistakes is not mended in five runs.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ponente.config.errors import UserError

_LONGEST_LIST = 12  # known keys are listed whole up to this many
_LONGEST_VALUE = 80
_SHORTEST_BEGINNING = 4  # of a name, by which another is known
_PARTS = re.compile(r"found (.+?); needed (.+)\. ([A-Z].+)\.", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: phrases without a full stop."""

    found: str
    needed: str
    remedy: str

    @classmethod
    def told(cls, text: str) -> "Problem | None":
        """The problem that a text tells in its three parts; None: it has others."""
        parts = _PARTS.fullmatch(text)
        return None if parts is None else cls(found=parts[1], needed=parts[2], remedy=parts[3])

    def __str__(self) -> str:
        return f"found {self.found}; needed {self.needed}. {self.remedy[:1].upper()}{self.remedy[1:]}."


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        listed = "".join(f"\n- {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems in the configuration:{listed}"


def shown(value: Any) -> str:
    """A value as it stands in an error: the way YAML writes it, cut where it is long."""
    text = (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or value is True or value is False
        else repr(value)
    )
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    by_form = {one.lower().replace("-", "_"): one for one in known}
    form = name.lower().replace("-", "_")
    close = difflib.get_close_matches(form, by_form, n=1) or [one for one in by_form if _begins(form, one)]
    return by_form[close[0]] if close else None


def _begins(one: str, other: str) -> bool:
    """Whether one name is the beginning of the other, as `mudd` is of `muddformer`."""
    short, long = sorted((one, other), key=len)
    return len(short) >= _SHORTEST_BEGINNING and long.startswith(short)


def one_of(known: Iterable[str]) -> str:
    """`known` as a phrase: all of it where that is short."""
    names = sorted(known)
    if not names:
        return "nothing"
    if len(names) > _LONGEST_LIST:
        return ", ".join(names[:_LONGEST_LIST]) + f" … ({len(names)} in all)"
    return ", ".join(names)
