"""How long a run is: steps, tokens or epochs, and how many examples each step takes."""

import logging
from dataclasses import dataclass

from ponente.batches.schedule import BatchStage
from ponente.batches.stream import BatchStream
from ponente.config.errors import RefusedError

_STEPS = 400_000  # where nothing is said

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The part of the trainer's section that batches follow from."""

    train_batch_size: int | list[BatchStage] = 512
    seed: int = 0
    num_train_steps: int | None = None
    num_train_tokens: int | None = None
    num_train_epochs: int | None = None

    def check(self) -> None:
        """Refuses lengths that make no sense, or more than one."""
        given = {
            "num_train_steps": self.num_train_steps,
            "num_train_tokens": self.num_train_tokens,
            "num_train_epochs": self.num_train_epochs,
        }
        said = [f"trainer.{key}: {value}" for key, value in given.items() if value is not None]
        if len(said) > 1:
            raise RefusedError(f"found {' and '.join(said)}; needed at most one of them. Keep the one that counts.")
        if any(value is not None and value < 1 for value in given.values()):
            raise RefusedError(f"found {said[0]}; needed 1 or more. Change it.")

    @property
    def planned_steps(self) -> int:
        """The steps that are asked for, as far as that can be told without data."""
        return _STEPS if self.num_train_steps is None else self.num_train_steps

    def steps(self, stream: BatchStream) -> int:
        """How many steps the run takes, in whichever way its length was given; no more than the data last."""
        self.check()
        if self.num_train_epochs is not None:
            asked = stream.steps_for_epochs(self.num_train_epochs)
        elif self.num_train_tokens is not None:
            asked = stream.steps_for_tokens(self.num_train_tokens)
        else:
            asked = self.planned_steps
        if stream.steps is None or asked <= stream.steps:
            return asked
        logger.warning("the data last %s steps with this stop_strategy, not %s", f"{stream.steps:,}", f"{asked:,}")
        return stream.steps
