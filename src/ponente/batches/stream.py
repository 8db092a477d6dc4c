"""The batches of a run: a mixture of datasets and a schedule of batch sizes, as a pure function of the step.

In: datasets, their mixture, batch sizes. Out: the arrays of any step, whole or only some of its rows. Nothing is
remembered between steps, so a run that resumes at any step, with any number of processes, sees the same batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ponente.batches.batch import Batch, PendingBatch, RowGroup, begin_batch
from ponente.batches.dataset import Dataset
from ponente.batches.mixture import Mixture, StopStrategy
from ponente.batches.permutation import Indices
from ponente.batches.schedule import BatchSchedule
from ponente.batches.shape import BatchShape
from ponente.config.errors import RefusedError

RowNumbers = Indices | Sequence[int]


@dataclass(frozen=True)
class Origin:
    """Where the rows of a batch come from."""

    dataset: NDArray[np.int64]  # its number; -1 for padding behind the end of the stream
    position: NDArray[np.int64]  # in the dataset's own endless stream


class BatchStream:
    """Random access to the batches of a run.

    Example:
        stream.batch(1_000_000).tokens_BS     # no step before it is ever computed
        stream.batch(7, rows=np.arange(128))  # what one of two processes reads
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        mixture: Mixture,
        schedule: BatchSchedule,
        shape: BatchShape,
        stop_strategy: StopStrategy = "restart",
    ) -> None:
        self.datasets = tuple(datasets)
        self.mixture = mixture
        self.schedule = schedule
        self.shape = shape
        needs_lengths = stop_strategy != "restart"
        self.length = mixture.length([one.length for one in datasets], stop_strategy) if needs_lengths else None

    @property
    def steps(self) -> int | None:
        """How many steps there are; None where the stream goes on for ever."""
        return None if self.length is None else self.schedule.steps_for(self.length)

    def steps_for_epochs(self, epochs: int) -> int:
        """The fewest steps that take as many rows as all datasets with a weight have, so many times.

        Of a single dataset each row is then seen so often; of a mixture as often as its weights say.
        """
        return self.schedule.steps_for(epochs * sum(dataset.length for dataset in self.datasets))

    def steps_for_tokens(self, tokens: int) -> int:
        """The fewest steps that take at least so many tokens, padding included."""
        return self.schedule.steps_for(-(-tokens // self.shape.length))

    def counts(self, step: int) -> NDArray[np.int64]:
        """How many rows of each dataset were seen before a step."""
        index = self.schedule.first_example(step)
        return self.mixture.counts(index if self.length is None else min(index, self.length))

    def origin(self, step: int, rows: RowNumbers | None = None) -> Origin:
        """Where the rows of a step come from."""
        if step < 0:
            raise RefusedError(f"found step {step}; needed 0 or more. Steps are counted from 0.")
        if self.steps is not None and step >= self.steps:
            raise RefusedError(
                f"found step {step} asked of data that lasts {self.steps} steps; needed one of them. "
                "Train fewer steps, or use stop_strategy: restart."
            )
        size = self.schedule.size(step)
        chosen = np.arange(size) if rows is None else np.asarray(rows, np.int64)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < size:
            raise RefusedError(
                f"found rows {int(chosen.min())} to {int(chosen.max())} asked of a batch of {size}; needed rows from 0 "
                f"to {size - 1}. Ask for those."
            )
        indices = self.schedule.first_example(step) + chosen
        dataset, position = self.mixture.locate(indices)
        if self.length is not None:
            dataset = np.where(indices < self.length, dataset, -1)
        return Origin(dataset, position)

    def begin(
        self, step: int, rows: RowNumbers | None = None, on_wait: Callable[[], None] | None = None
    ) -> PendingBatch:
        """Begins to read the batch of a step, or only those of its rows; `on_wait` may raise rather than wait."""
        origin = self.origin(step, rows)
        groups = []
        for number, dataset in enumerate(self.datasets):
            here = np.flatnonzero(origin.dataset == number)
            if len(here):
                groups.append(RowGroup(dataset.rows, here, *dataset.spans(origin.position[here], on_wait)))
        return begin_batch(self.shape, len(origin.dataset), groups)

    def batch(self, step: int, rows: RowNumbers | None = None) -> Batch:
        """The arrays of a step, or only of those of its rows."""
        return self.begin(step, rows).finish()

    def example(self, index: int) -> Batch:
        """The arrays of one example of the mixture, as a batch of one row."""
        if index < 0 or (self.length is not None and index >= self.length):
            raise RefusedError(
                f"found example {index} asked of a mixture of {self.length or 'endless'} examples; needed one of "
                "them, from 0 on. Ask for a smaller one."
            )
        dataset, position = self.mixture.locate(np.array([index]))
        chosen = self.datasets[int(dataset[0])]
        return begin_batch(self.shape, 1, [RowGroup(chosen.rows, np.zeros(1, int), *chosen.spans(position))]).finish()
