"""Metrics to where people look: trackers by their `type`, several at once, none of which can hold up the training."""

from ponente.train.trackers.background import in_background
from ponente.train.trackers.begin import begin_trackers, check_trackers
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.json_lines import JsonFileTrackerConfig, JsonTrackerConfig
from ponente.train.trackers.local import LocalTrackerConfig
from ponente.train.trackers.noop import NoopTrackerConfig
from ponente.train.trackers.several import several
from ponente.train.trackers.tensorboard import TensorboardConfig
from ponente.train.trackers.tracker import Histogram, Metrics, RunInfo, Tracker
from ponente.train.trackers.wandb import WandbConfig

__all__ = [
    "Histogram",
    "JsonFileTrackerConfig",
    "JsonTrackerConfig",
    "LocalTrackerConfig",
    "Metrics",
    "NoopTrackerConfig",
    "RunInfo",
    "TensorboardConfig",
    "Tracker",
    "TrackerConfig",
    "WandbConfig",
    "begin_trackers",
    "check_trackers",
    "in_background",
    "several",
]
