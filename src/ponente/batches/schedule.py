"""How many examples each step takes: one batch size, or several from given steps on.

In: `512`, or `[{start: 0, value: 256}, {start: 1000, value: 512}]`. Out: the first example of any step, and how many
steps so many examples or tokens make, in closed form.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from ponente.config.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """From step `start` on, batches have `value` examples."""

    start: int
    value: int


@dataclass(frozen=True)
class BatchSchedule:
    """Batch sizes by step.

    Example: `BatchSchedule.of([BatchStage(start=0, value=4), BatchStage(start=10, value=8)]).first_example(11) == 48`
    """

    stages: tuple[BatchStage, ...]

    @classmethod
    def of(cls, sizes: int | Sequence[BatchStage]) -> "BatchSchedule":
        """The schedule of one size or of stages; refuses what leaves a step without a size."""
        stages = (BatchStage(start=0, value=sizes),) if isinstance(sizes, int) else tuple(sizes)
        starts = [stage.start for stage in stages]
        if not stages or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise RefusedError(
                f"found batch sizes that start at steps {starts}; needed the first at 0 and each later than the one "
                "before. Write [{start: 0, value: 256}, {start: 1000, value: 512}]."
            )
        if wrong := [stage.value for stage in stages if stage.value < 1]:
            raise RefusedError(f"found a batch size of {wrong[0]}; needed 1 or more. Set trainer.train_batch_size.")
        return cls(stages)

    @cached_property
    def _starts(self) -> list[int]:
        return [stage.start for stage in self.stages]

    @cached_property
    def _firsts(self) -> list[int]:
        """The first example of each stage."""
        sizes = [(b.start - a.start) * a.value for a, b in pairwise(self.stages)]
        return [0, *accumulate(sizes)]

    def size(self, step: int) -> int:
        """How many examples the step takes."""
        return self.stages[bisect.bisect_right(self._starts, step) - 1].value

    def first_example(self, step: int) -> int:
        """How many examples come before the step."""
        number = bisect.bisect_right(self._starts, step) - 1
        stage = self.stages[number]
        return self._firsts[number] + (step - stage.start) * stage.value

    def steps_for(self, examples: int) -> int:
        """The fewest steps that take at least so many examples."""
        number = bisect.bisect_right(self._firsts, examples - 1) - 1 if examples > 0 else 0
        stage = self.stages[number]
        return stage.start + -(-(max(0, examples) - self._firsts[number]) // stage.value)

    @property
    def largest(self) -> int:
        """The largest batch."""
        return max(stage.value for stage in self.stages)
