"""No tracker."""

from dataclasses import dataclass

from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.tracker import Metrics, RunInfo, Tracker


class NoTracker:
    """Keeps nothing."""

    name = "noop"

    def log(self, metrics: Metrics, step: int) -> None:
        pass

    def log_summary(self, metrics: Metrics) -> None:
        pass

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass


@TrackerConfig.register_subclass("noop")
@dataclass(frozen=True, kw_only=True)
class NoopTrackerConfig(TrackerConfig):
    """No tracker."""

    def begin(self, run: RunInfo) -> Tracker:
        return NoTracker()
