"""Several trackers as one: each is told everything, whatever becomes of the others."""

from collections.abc import Sequence

from ponente.train.trackers.guard import GuardedTracker
from ponente.train.trackers.tracker import Metrics, Tracker


class _Several:
    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    @property
    def name(self) -> str:
        return ", ".join(tracker.name for tracker in self._trackers)

    def log(self, metrics: Metrics, step: int) -> None:
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def log_summary(self, metrics: Metrics) -> None:
        for tracker in self._trackers:
            tracker.log_summary(metrics)

    def flush(self) -> None:
        for tracker in self._trackers:
            tracker.flush()

    def finish(self) -> None:
        for tracker in self._trackers:
            tracker.finish()


def several(trackers: Sequence[Tracker]) -> Tracker:
    """One tracker of all these; the errors of each are warnings."""
    return _Several([GuardedTracker(tracker) for tracker in trackers])
