"""A profile of some steps, for TensorBoard or Perfetto, written by JAX."""

import logging
from dataclasses import dataclass

import jax

from ponente.config.fields import Kind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProfilerConfig:
    """Which steps are profiled."""

    config_kind = Kind.OBSERVATION

    enabled: bool = False
    start_step: int = 5
    num_steps: int = 25
    perfetto_link: bool = False  # a link to look at it; the run waits until it is opened


class Profiler:
    """Begins and ends a profile as steps go by."""

    def __init__(self, config: ProfilerConfig, folder: str, first_step: int) -> None:
        self._config = config
        self._folder = folder
        self._start = max(config.start_step, first_step)
        self._is_on = False

    def before(self, step: int) -> None:
        """A step is about to begin."""
        if self._config.enabled and not self._is_on and step == self._start:
            jax.profiler.start_trace(self._folder, create_perfetto_link=self._config.perfetto_link)
            self._is_on = True

    def is_last(self, step: int) -> bool:
        """Whether the profile ends with this step."""
        return self._is_on and step + 1 >= self._start + self._config.num_steps

    def stop(self) -> None:
        """Ends a profile that is being made; what was dispatched must have ended."""
        if self._is_on:
            jax.profiler.stop_trace()
            self._is_on = False
            logger.info("the profile is in %s", self._folder)
