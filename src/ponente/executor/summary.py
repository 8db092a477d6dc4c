"""What a step says about its own result, for people: key-values, tables, series.

A step's function may return a `Summary`; it is stored with the commit, and its values are shown by `ponente why`. Data
for other steps goes through files, never through this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

_MAX_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Small facts about a result.

    `tables` are lists of rows, each a mapping of column to value; `series` are lists of numbers to be drawn.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The summary as the commit stores it."""
        parts = {"values": self.values, "tables": self.tables, "series": self.series}
        encoded = msgspec.json.encode({name: part for name, part in parts.items() if part}, enc_hook=_plain)
        if len(encoded) > _MAX_BYTES:
            raise ValueError(
                f"found a summary of {len(encoded)} bytes; needed at most {_MAX_BYTES}. Write large things to files"
            )
        decoded: dict[str, Any] = msgspec.json.decode(encoded)
        return decoded


def _plain(value: Any) -> Any:
    """Numbers of numpy and jax as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"found {value!r} in a summary; needed numbers, texts, lists and mappings")
