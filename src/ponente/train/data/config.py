"""The data section of a training run: which caches there are (`tokens`), and how batches are drawn (`batches`)."""

from dataclasses import dataclass, field
from typing import Literal

from ponente.batches.config import MixtureConfig
from ponente.batches.packing import OverLength
from ponente.batches.rows import RowPolicy
from ponente.config import execution, observation
from ponente.config.errors import RefusedError
from ponente.tokens.config import ComponentConfig, DataConfig
from ponente.tokens.formats import PrebuiltFormat
from ponente.tokens.formats.format import LOSS_MASK

Pack = bool | int | Literal["concat", "pad"]


@dataclass(frozen=True, kw_only=True)
class TrainComponentConfig(ComponentConfig):
    """One dataset: also how its documents become rows, and the tags under which it is evaluated."""

    pack: Pack | None = None  # None: as its format says
    over_length: OverLength | None = None  # documents longer than a row; None: split, or an error where each has a row
    tags: tuple[str, ...] = observation(())

    def row_policy(self) -> RowPolicy:
        """How documents become rows: `pack` of the dataset, else of its format, else what its format is for."""
        pack: Pack | None = self.pack if self.pack is not None else getattr(self.format, "pack", None)
        if pack is not None and not isinstance(pack, bool | str) and pack < 1:
            raise RefusedError(
                f"found pack: {pack}; needed true, false, concat, pad or how many documents a row may have, 1 or more. "
                "Change it."
            )
        has_mask = LOSS_MASK in self.format.columns()
        is_single = pack == "pad" or (pack is False and has_mask)
        if is_single or (not pack and isinstance(self.format, PrebuiltFormat)):
            return RowPolicy(packing="single", over_length=self.over_length or "error")
        if pack == "concat" or (not pack and not has_mask):
            if self.over_length is not None:
                raise RefusedError(
                    f"found over_length: {self.over_length} for a dataset whose documents are put in one line and cut "
                    "every row; needed pack: true or pad beside it. Set one, or remove over_length."
                )
            return RowPolicy(packing="concatenated")
        most = None if isinstance(pack, bool | str) else pack
        return RowPolicy(packing="packed", max_documents=most, over_length=self.over_length or "split")


@dataclass(frozen=True, kw_only=True)
class TrainDataConfig(MixtureConfig, DataConfig):
    """All datasets of a training run."""

    components: dict[str, TrainComponentConfig] = field(default_factory=dict)  # type: ignore[assignment]
    auto_build_caches: bool = execution(True)

    def documents_per_row(self, length: int) -> int:
        room = super().documents_per_row(length)
        for name, component in self.components.items():
            most = component.row_policy().max_documents
            if most is not None and most + 1 > room:
                if self.max_documents_per_row is not None:
                    raise RefusedError(
                        f"found pack: {most} of {name} and data.max_documents_per_row: {self.max_documents_per_row}; "
                        f"needed room for {most} documents and padding. Raise data.max_documents_per_row to {most + 1}."
                    )
                room = most + 1
        return room

    def reads_in_order(self, name: str) -> bool:
        """Whether training may begin on a dataset whose cache is still being built: its order needs no whole one."""
        allows = self.order().horizon(0) is not None
        limits = (self.num_validation_sequences or {}).get(name), (self.max_train_batches or {}).get(name)
        is_whole = limits == (None, None) and self.target_budget is None and self.stop_strategy == "restart"
        return allows and is_whole and self.components[name].row_policy().packing == "concatenated"
