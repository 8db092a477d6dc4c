"""The hf source: datasets of the Hugging Face hub, and folders that the `datasets` library understands."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ponente.store.sources.rows import SourceError
from ponente.store.sources.source import SPLITS, Fingerprint, RowBatch, SourceConfig, Unit


@SourceConfig.register_subclass("hf")
@dataclass(frozen=True, kw_only=True)
class HfSourceConfig(SourceConfig):
    """Rows of a dataset: `id` is its name on the hub, or a local folder (of data files, or by `save_to_disk`).

    `stream` reads the dataset's files as they are; without it, they are downloaded and converted to Arrow first.
    `split_names` says how our splits are called there; without streaming also as "train[:99%]". Code that comes with a
    dataset is never run.
    """

    id: str
    name: str | None = None
    revision: str | None = None
    stream: bool = True
    split_names: dict[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})

    def __post_init__(self) -> None:
        for split in self.split_names:
            if split not in SPLITS:
                raise SourceError(
                    f"found split {split!r} in the source of {self.id!r}; needed {' and '.join(SPLITS)} as keys, with "
                    "the dataset's own names as values. Example: split_names: {validation: test}."
                )

    def splits(self) -> list[str]:
        there: list[str] = _hub().names_of_splits(self)
        found = [split for split, name in self.split_names.items() if _base(name) in there]
        if not found:
            raise SourceError(
                f"found the splits {', '.join(there)} in dataset {self.id!r}; needed one of: "
                f"{', '.join(self.split_names.values())}. Name them: split_names: {{train: {there[0]}}}."
            )
        return [split for split in SPLITS if split in found]

    def units(self, split: str) -> list[Unit]:
        return list(_hub().plan(self, self._there(split)))

    def identity(self, split: str) -> dict[str, Any]:
        return {"type": "hf", "name": self.name, "split": self._there(split)}

    def fingerprints(self, split: str) -> list[Fingerprint]:
        return list(_hub().fingerprints(self, self._there(split)))

    def read(self, unit: Unit, fields: Mapping[str, Any], *, skip: int = 0) -> Iterator[RowBatch]:
        batches: Iterator[RowBatch] = _hub().read(self, unit, fields, skip)
        return batches

    def _there(self, split: str) -> str:
        if split not in self.split_names:
            raise SourceError(
                f"found split {split!r}; needed one that the source of {self.id!r} names: "
                f"{', '.join(self.split_names)}."
            )
        return self.split_names[split]


def _base(name: str) -> str:
    return name.partition("[")[0].partition("+")[0]


def _hub() -> ModuleType:
    try:
        from ponente.store.sources import hub
    except ImportError as error:
        raise SourceError(
            f"found a source of type hf, but {error.name} is not installed; needed it to read datasets of the hub. "
            "Install it: pip install 'ponente[hub]'."
        ) from error
    return hub
