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
        has_mask = LOSS_MASK in self.format.columns()
        is_single = pack == "pad" or (pack is False and has_mask)
        if is_single or (not pack and isinstance(self.format, PrebuiltFormat)):
            return RowPolicy(packing="single", over_length=self.over_length or "error")
        if pack == "concat" or (not pack and not has_mask):
            return RowPolicy(packing="concatenated")
        if not isinstance(pack, bool) and isinstance(pack, int) and pack < 0:
            raise RefusedError(
                f"found pack: {pack}; needed true, false, concat, pad or a number of documents. Change it."
            )
        most = pack if isinstance(pack, int) and not isinstance(pack, bool) else None
        return RowPolicy(packing="packed", max_documents=most, over_length=self.over_length or "split")


@dataclass(frozen=True, kw_only=True)
class TrainDataConfig(MixtureConfig, DataConfig):
    """All datasets of a training run."""

    components: dict[str, TrainComponentConfig] = field(default_factory=dict)  # type: ignore[assignment]
    auto_build_caches: bool = execution(True)
