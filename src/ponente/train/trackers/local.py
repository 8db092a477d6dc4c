"""The default tracker: segments of JSON lines under the run's folder, in the format of `store.metrics`."""

import time
from dataclasses import dataclass

from ponente.config.errors import RefusedError
from ponente.store.metrics import MetricWriter, begin_metrics
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.tracker import Metrics, RunInfo, Tracker


class LocalTracker:
    """Publishes every few seconds what it was told."""

    name = "local"

    def __init__(self, writer: MetricWriter, publish_seconds: float) -> None:
        self._writer = writer
        self._publish_seconds = publish_seconds
        self._published = -float("inf")  # the first line is seen at once

    def log(self, metrics: Metrics, step: int) -> None:
        self._writer.add(metrics, step)
        if time.monotonic() - self._published >= self._publish_seconds:
            self.flush()

    def log_summary(self, metrics: Metrics) -> None:
        self._writer.add_summary(metrics)

    def flush(self) -> None:
        self._writer.publish()
        self._published = time.monotonic()

    def finish(self) -> None:
        self.flush()


@TrackerConfig.register_subclass("local")
@dataclass(frozen=True, kw_only=True)
class LocalTrackerConfig(TrackerConfig):
    """Metrics in the run's folder, where the browser finds them."""

    publish_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.publish_seconds >= 0:
            raise RefusedError(f"found publish_seconds: {self.publish_seconds}; needed 0 or more. Change it.")

    def begin(self, run: RunInfo) -> Tracker:
        return LocalTracker(begin_metrics(run.folder, run.first_step), self.publish_seconds)
