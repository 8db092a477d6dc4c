"""Weights & Biases, by Levanter's keys."""

from dataclasses import dataclass
from typing import Literal

from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.tracker import RunInfo, Tracker


@TrackerConfig.register_subclass("wandb")
@dataclass(frozen=True, kw_only=True)
class WandbConfig(TrackerConfig):
    """A run of W&B. Without a key it runs offline, without the package not at all; either is a warning."""

    entity: str | None = None
    project: str | None = None  # None: WANDB_PROJECT, else W&B's "uncategorized"
    name: str | None = None
    tags: tuple[str, ...] = ()
    id: str | None = None  # None: the run's
    group: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None  # None: WANDB_MODE, else online
    resume: bool | str = "allow"

    def begin(self, run: RunInfo) -> Tracker:
        from ponente.train.trackers import wandb_run

        return wandb_run.begin(self, run)
