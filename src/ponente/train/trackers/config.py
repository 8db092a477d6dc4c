"""Trackers by their `type`; one registers by decorating its config."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import draccus

from ponente.config import Kind
from ponente.train.trackers.tracker import RunInfo, Tracker


@dataclass(frozen=True, kw_only=True)
class TrackerConfig(draccus.ChoiceRegistry):
    """A tracker. Register your own: `@TrackerConfig.register_subclass("mine")` on a frozen dataclass."""

    config_kind: ClassVar[Kind] = Kind.OBSERVATION

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "local"

    def check(self) -> None:
        """Raises a UserError if this tracker cannot work here; called before any work is done."""

    @abstractmethod
    def begin(self, run: RunInfo) -> Tracker:
        """Begins to track a run, or a further life of it."""
