"""Averages of weights over the steps of a run, which are evaluated and exported in place of the last ones."""

from dataclasses import dataclass

import draccus

from ponente.config.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(draccus.ChoiceRegistry):
    """How weights are averaged."""

    beta: float = 0.999  # how much of the average stays at each step

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise RefusedError(
                f"found trainer.model_averaging.beta: {self.beta}; needed a number from 0 up to, not including, 1. "
                "Change it, such as to 0.999."
            )

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "ema"


@AveragingConfig.register_subclass("ema")
@dataclass(frozen=True, kw_only=True)
class EmaConfig(AveragingConfig):
    """Exponential moving average."""
