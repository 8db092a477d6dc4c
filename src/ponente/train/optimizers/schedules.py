"""The learning rate of every step: cycles of warmup, a stable part and a decay.

In: how long each part is, as a fraction of its cycle or in steps, and the shape of the decay. Out: a function of the
step, which may be traced. Shapes and defaults are Levanter's.
"""

import logging
import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import draccus
import jax
import jax.numpy as jnp
import optax

from ponente.config.errors import RefusedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Descent:
    """A decay that is to be shaped."""

    peak: float
    floor: float
    warmup_steps: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class DecayConfig(draccus.ChoiceRegistry):
    """The shape of a decay: `lr_schedule: cosine`, or `lr_schedule: {type: polynomial, power: 2}`."""

    @abstractmethod
    def schedule(self, descent: Descent) -> optax.Schedule:
        """The learning rate by steps since the decay began."""


@DecayConfig.register_subclass("constant")
@dataclass(frozen=True, kw_only=True)
class ConstantDecay(DecayConfig):
    """None."""

    def schedule(self, descent: Descent) -> optax.Schedule:
        return optax.constant_schedule(descent.peak)


@DecayConfig.register_subclass("cosine")
@dataclass(frozen=True, kw_only=True)
class CosineDecay(DecayConfig):
    """Half a cosine."""

    exponent: float = 1.0

    def schedule(self, descent: Descent) -> optax.Schedule:
        floor = descent.floor / descent.peak if descent.peak else 0.0  # of a rate of 0 any part is 0
        return optax.cosine_decay_schedule(descent.peak, descent.steps, floor, self.exponent)


@DecayConfig.register_subclass("linear")
@dataclass(frozen=True, kw_only=True)
class LinearDecay(DecayConfig):
    """A line."""

    def schedule(self, descent: Descent) -> optax.Schedule:
        return optax.linear_schedule(descent.peak, descent.floor, descent.steps)


@DecayConfig.register_subclass("inv_sqrt")
@dataclass(frozen=True, kw_only=True)
class InverseSqrtDecay(DecayConfig):
    """1 / sqrt of the step, on a scale of its own."""

    timescale: float = 10000.0

    def schedule(self, descent: Descent) -> optax.Schedule:
        def rate(step: optax.ScalarOrSchedule) -> jnp.ndarray:
            passed = jnp.maximum(step + descent.warmup_steps, 1) / self.timescale
            return jnp.maximum(descent.peak * jnp.minimum(1.0, 1 / jnp.sqrt(passed)), descent.floor)

        return rate


@DecayConfig.register_subclass("inv")
@dataclass(frozen=True, kw_only=True)
class InverseDecay(DecayConfig):
    """1 / step, which is at the floor when the decay ends."""

    def schedule(self, descent: Descent) -> optax.Schedule:
        if descent.floor <= 0:
            raise RefusedError(
                f"found lr_schedule: inv with a floor of {descent.floor}; needed min_lr_ratio above 0. Set it."
            )

        def rate(step: optax.ScalarOrSchedule) -> jnp.ndarray:
            slope = descent.peak / descent.floor - 1
            share = jnp.minimum(1.0, 1 / (slope * jnp.maximum(step, 1) / descent.steps + 1))
            return jnp.maximum(descent.peak * share, descent.floor)

        return rate


@DecayConfig.register_subclass("polynomial")
@dataclass(frozen=True, kw_only=True)
class PolynomialDecay(DecayConfig):
    """A power of what is left."""

    power: float = 1.0

    def schedule(self, descent: Descent) -> optax.Schedule:
        return optax.polynomial_schedule(descent.peak, descent.floor, self.power, descent.steps)


@DecayConfig.register_subclass("inv_sqrt_decay")
@dataclass(frozen=True, kw_only=True)
class ScaledInverseSqrtDecay(DecayConfig):
    """1 / sqrt of one plus the part of the decay that has passed, times a constant."""

    decay_constant: float = 28.6

    def schedule(self, descent: Descent) -> optax.Schedule:
        def rate(step: optax.ScalarOrSchedule) -> jnp.ndarray:
            passed = 1.0 + self.decay_constant * step / descent.steps
            return jnp.maximum(descent.floor, descent.peak / jnp.sqrt(passed))

        return rate


@DecayConfig.register_subclass("power")
@dataclass(frozen=True, kw_only=True)
class PowerDecay(DecayConfig):
    """A power of the tokens seen, below the peak (Shen et al. 2024)."""

    batch_size: int
    seq_length: int
    a: float = 4.6
    b: float = -0.51

    def schedule(self, descent: Descent) -> optax.Schedule:
        if self.a <= 0 or self.b >= 0:
            raise RefusedError(
                f"found lr_schedule a: {self.a}, b: {self.b}; needed a above 0 and b below. Change them."
            )

        def rate(step: optax.ScalarOrSchedule) -> jnp.ndarray:
            tokens = jnp.maximum(jnp.asarray(step, jnp.float32), 0) * self.batch_size * self.seq_length
            return jnp.minimum(descent.peak, self.batch_size * self.a * tokens**self.b)

        return rate


@cache
def _say_too_short(warmup: int, length: int) -> None:
    logger.warning("a warmup of %s steps does not end in a cycle of %s: its rate is not reached", warmup, length)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The keys of an optimizer that say how its learning rate goes."""

    learning_rate: float = 6e-4
    min_lr_ratio: float = 0.1
    warmup: float = 0.01  # a fraction of the cycle, or steps
    decay: float | None = None  # None: all that is left of the cycle
    rewarmup: float = 0.0  # of each cycle but the first
    cycles: int | list[int] | None = None  # how many, or the steps at which they end
    cycle_length: float | list[int] | None = None
    lr_schedule: str | DecayConfig = "cosine"

    def check(self) -> None:
        """Refuses numbers that make no sense, and shapes that there are not."""
        self._shape()
        for key in ("learning_rate", "min_lr_ratio", "warmup", "rewarmup"):
            value = getattr(self, key)
            if not 0 <= value < math.inf:
                raise RefusedError(f"found optimizer.{key}: {value}; needed 0 or more. Change it.")

    def learning_rates(self, num_train_steps: int) -> optax.Schedule:
        """The learning rate by step, of a run of so many."""
        shape, floor = self._shape(), self.learning_rate * self.min_lr_ratio
        parts: list[optax.Schedule] = []
        ends: list[int] = []
        previous = 0.0
        for number, (start, end) in enumerate(pairwise(self._cycle_ends(num_train_steps))):
            length = end - start
            warmup = _steps("warmup", self.rewarmup if number else self.warmup, length)
            if warmup > length:
                _say_too_short(warmup, length)
                warmup = length
            asked = length - warmup if self.decay is None else _steps("decay", self.decay, length)
            decay = min(asked, length - warmup)
            if warmup:
                parts.append(optax.linear_schedule(previous, self.learning_rate, warmup))
                ends.append(start + warmup)
            if length - warmup - decay:
                parts.append(optax.constant_schedule(self.learning_rate))
                ends.append(end - decay)
            if decay:
                parts.append(shape.schedule(Descent(self.learning_rate, floor, warmup, decay)))
                ends.append(end)
            with jax.ensure_compile_time_eval():  # an optimizer may be built while a program is traced
                previous = float(parts[-1](decay if decay else length))
        return optax.join_schedules(parts, ends[:-1])

    def _shape(self) -> DecayConfig:
        if isinstance(self.lr_schedule, DecayConfig):
            return self.lr_schedule
        known = DecayConfig.get_known_choices()
        if self.lr_schedule not in known or self.lr_schedule == "power":
            raise RefusedError(
                f"found optimizer.lr_schedule: {self.lr_schedule}; needed one of {', '.join(known)} (power as a "
                "mapping, with batch_size and seq_length). Change it."
            )
        chosen: DecayConfig = known[self.lr_schedule]()
        return chosen

    def _cycle_ends(self, num_train_steps: int) -> list[int]:
        """0, the steps at which cycles end, and the last step."""
        if self.cycles is not None and self.cycle_length is not None:
            raise RefusedError(
                "found optimizer.cycles and optimizer.cycle_length; needed at most one of them. Remove one."
            )
        ends: list[int] = []
        if isinstance(self.cycle_length, list):
            ends = [sum(self.cycle_length[: number + 1]) for number in range(len(self.cycle_length))]
        elif self.cycle_length is not None:
            length = max(1, _steps("cycle_length", self.cycle_length, num_train_steps))
            ends = [number * length for number in range(1, num_train_steps // length)]
        elif isinstance(self.cycles, list):
            ends = list(self.cycles)
        elif self.cycles is not None:
            ends = [int(num_train_steps / self.cycles * (number + 1)) for number in range(self.cycles - 1)]
        ends = [0, *ends]
        if ends[-1] != num_train_steps:
            ends.append(num_train_steps)
        if ends != sorted(set(ends)):
            raise RefusedError(
                f"found cycles of the learning rate that end at steps {ends[1:]} of {num_train_steps}; needed rising "
                "steps within the run. Change optimizer.cycles or cycle_length."
            )
        return ends


def _steps(key: str, value: float, whole: int) -> int:
    """A fraction of so many steps, or steps themselves."""
    if value < 0 or (value > 1 and value != int(value)):
        raise RefusedError(
            f"found optimizer.{key}: {value}; needed a fraction from 0 to 1, or a whole number of steps. Change it."
        )
    return int(value * whole) if value <= 1 else int(value)
