"""The keys of the data section that say how batches are drawn from token caches."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ponente.batches.mixture import StopStrategy, WeightStage
from ponente.batches.order import OrderConfig
from ponente.batches.schedule import BatchSchedule
from ponente.config.errors import RefusedError
from ponente.config.problems import nearest

_LARGEST_WEIGHT = 1e18
_DOCUMENTS, _TOKENS_A_DOCUMENT = 32, 64  # packed into a row: so many, or one for so many tokens where that is more


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(OrderConfig):
    """How datasets are mixed, and which part of each is used."""

    train_weights: dict[str, float] | list[tuple[int, dict[str, float]]] | None = None  # None: 1 each; 0: validation
    stop_strategy: StopStrategy = "restart"
    mixture_block_size: int = 2048
    max_train_batches: dict[str, int] | None = None
    num_validation_sequences: dict[str, int] | None = None  # held out of the train split
    shift_epochs: bool = False  # rows of text are cut at other places in each epoch after the first
    block_cross_document_attention: bool = True
    max_documents_per_row: int | None = None  # packed: by default 1 for 64 tokens, 32 at least, padding counted
    target_budget: int | None = None  # tokens of the run that is simulated …
    experiment_budget: int | None = None  # … by one of so many, which repeats data as often as that would

    def documents_per_row(self, length: int) -> int:
        """How many documents are packed into a row at most; padding is one of them."""
        if self.max_documents_per_row is not None:
            if self.max_documents_per_row < 2:
                raise RefusedError(
                    f"found data.max_documents_per_row: {self.max_documents_per_row}; needed 2 or more (padding is "
                    "one). Leave it out, or set block_cross_document_attention: false."
                )
            return self.max_documents_per_row
        return max(_DOCUMENTS, length // _TOKENS_A_DOCUMENT)

    def stages(
        self, names: Sequence[str], schedule: BatchSchedule, untrained: Collection[str] = ()
    ) -> list[WeightStage]:
        """The weights of the datasets that there are, from which example on; `untrained` ones may have weight 0."""
        if not names:
            raise RefusedError(
                "found no dataset with a train split; needed at least one to train on. Add train_urls to one."
            )
        weights = dict.fromkeys(names, 1.0) if self.train_weights is None else self.train_weights
        staged = [(0, weights)] if isinstance(weights, dict) else weights
        starts = [start for start, _ in staged]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise RefusedError(
                f"found data.train_weights with stages from steps {starts}; needed the first from 0 and each later "
                "than the one before. Write [[0, {web: 1.0}], [1000, {web: 0.5, code: 0.5}]]."
            )
        for start, of_stage in staged:
            counted = {name: weight for name, weight in of_stage.items() if weight or name not in untrained}
            _check_weights(names, start, counted)
        return [WeightStage(schedule.first_example(start), of_stage) for start, of_stage in staged]

    def simulated_rows(self, rows: int) -> int | None:
        """How many of a dataset's rows are used, so that they repeat as often as in the run that is simulated."""
        self.check_budgets()
        if self.target_budget is None or self.experiment_budget is None:
            return None
        return max(1, rows * self.experiment_budget // self.target_budget)

    def check_budgets(self) -> None:
        """Refuses budgets of which one is missing or that make no sense."""
        target, experiment = self.target_budget, self.experiment_budget
        if target is None and experiment is None:
            return
        if target is None or experiment is None or not 0 < experiment <= target:
            raise RefusedError(
                f"found data.target_budget: {target} and data.experiment_budget: {experiment}; needed both, in tokens, "
                "the target the larger. Set both or neither."
            )
        if self.max_train_batches:
            raise RefusedError(
                "found data.max_train_batches beside data.target_budget; needed one of them, for both say which part "
                "of the data is used. Remove one."
            )

    def check_names(self, names: Sequence[str]) -> None:
        """Refuses limits of datasets that there are not."""
        for key in ("max_train_batches", "num_validation_sequences"):
            for name, number in (getattr(self, key) or {}).items():
                if name not in names:
                    raise _unknown(f"data.{key}", name, names)
                if number < 1:
                    raise RefusedError(f"found data.{key}.{name}: {number}; needed 1 or more. Leave it out for none.")
        if self.shift_epochs and self.num_validation_sequences:
            raise RefusedError(
                "found data.shift_epochs beside data.num_validation_sequences; needed one of them, for rows that are "
                "shifted would overlap those held out. Remove one, or give validation_urls."
            )
        if not 1 <= self.mixture_block_size <= 1 << 20:
            raise RefusedError(
                f"found data.mixture_block_size: {self.mixture_block_size}; needed 1 to {1 << 20} examples. "
                "Leave it out."
            )


def _check_weights(names: Sequence[str], start: int, weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if name not in names:
            raise _unknown("data.train_weights", name, names)
        if not 0 <= weight <= _LARGEST_WEIGHT:
            raise RefusedError(
                f"found data.train_weights.{name}: {weight}; needed a number from 0 to {_LARGEST_WEIGHT:g}. "
                "0 is validation only."
            )
    if not any(weights.values()):
        raise RefusedError(
            f"found data.train_weights without one above 0 from step {start} on; needed at least one. Raise one."
        )


def _unknown(key: str, name: str, names: Sequence[str]) -> RefusedError:
    close = nearest(name, names)
    remedy = f"Write {close} if that is what you mean." if close else "Remove it, or add the dataset."
    needed = f"needed one of the datasets with a train split: {', '.join(names)}"
    return RefusedError(f"found {key}.{name}; {needed}. {remedy}")
