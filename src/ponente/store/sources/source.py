"""What every source of rows is: splits made of units, each read in order as batches of rows.

In: a config (`type: url | hf | …`). Out: units (JSON values, the same on every machine and for any number of workers)
and, for a unit, batches of the wanted fields with the place of each row. A row that cannot be read is handed over as a
BadRow, never dropped and never raised: who asked decides what the budget allows.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import draccus
import msgspec

from ponente.config.snapshot import plain_value

SPLITS = ("train", "validation")
Unit = dict[str, Any]  # a JSON value that its source understands


class BadRow(msgspec.Struct, frozen=True):
    """A row that could not be read or encoded: where it is, what was found and needed, and how it begins."""

    path: str
    line: int  # from 1; 0 where the file as a whole is meant
    error: str
    excerpt: str
    row: int  # its number within the unit


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Some rows of a unit, in order.

    `values[name][i]` belongs to the row numbered `rows[i]`; rows count from 0 through the whole unit and are counted
    for good and bad ones alike, so that `skip` means the same whatever the batches were.
    """

    values: dict[str, list[Any]]
    rows: list[int]
    place: Callable[[int], tuple[str, int]]  # of a row's number: its file, and its line there (from 1)
    bad: list[BadRow] = field(default_factory=list)
    next_row: int  # the number of the first row after this batch
    source_bytes: int = 0  # how many bytes of the source (compressed) this batch took, for the progress bar


class Fingerprint(msgspec.Struct, frozen=True):
    """What tells one state of a file (or dataset) from another."""

    path: str
    size: int
    digest: str  # of the whole of a small file, of samples of a large one
    modified: str = ""  # time or etag: equal means unchanged, different means look at the digest


@dataclass(frozen=True, kw_only=True)
class SourceConfig(draccus.ChoiceRegistry):
    """A source of rows. Register your own: `@SourceConfig.register_subclass("mine")` on a frozen dataclass."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "url"

    @abstractmethod
    def splits(self) -> list[str]:
        """The splits that this source has, of "train" and "validation"."""

    @abstractmethod
    def units(self, split: str) -> list[Unit]:
        """The split as units of work, in order, a few MB to a few hundred MB each."""

    @abstractmethod
    def fingerprints(self, split: str) -> list[Fingerprint]:
        """The state of the split's files, in the order of their units."""

    def identity(self, split: str) -> dict[str, Any]:
        """What the rows of a split depend on besides the files themselves, as JSON; a cache is compared by it."""
        plain: dict[str, Any] = plain_value(self)
        return plain

    @abstractmethod
    def read(self, unit: Unit, fields: Mapping[str, Any], *, skip: int = 0) -> Iterator[RowBatch]:
        """The rows of a unit from number `skip` on.

        Args:
            fields: the wanted fields with the types that their values must have, as msgspec knows them, such as
                `{"text": str}`. Other fields of a row are passed over.
        """

    def unit_bytes(self, unit: Unit) -> int:
        """How many bytes of the source a unit holds; 0 where nobody knows. For progress and order of work."""
        return int(unit.get("bytes", 0))
