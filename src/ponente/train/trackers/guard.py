"""A tracker whose errors are warnings: what fails to be shown must not end the training."""

import logging
from collections.abc import Callable

from ponente.train.trackers.tracker import Metrics, Tracker

_MOST_FAILURES = 10  # in a row; then the tracker is left alone

logger = logging.getLogger(__name__)


class GuardedTracker:
    """Warns once for each type of error, and gives up on a tracker that only fails."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._told: set[type[Exception]] = set()
        self._failures = 0

    @property
    def name(self) -> str:
        return self._tracker.name

    def log(self, metrics: Metrics, step: int) -> None:
        self._try(lambda: self._tracker.log(metrics, step), f"the metrics of step {step}")

    def log_summary(self, metrics: Metrics) -> None:
        self._try(lambda: self._tracker.log_summary(metrics), "a summary")

    def flush(self) -> None:
        self._try(self._tracker.flush, "what it was told")

    def finish(self) -> None:
        self._failures = 0  # it may have files to close, whatever became of it
        self._try(self._tracker.finish, "the end of the run")

    def _try(self, call: Callable[[], None], what: str) -> None:
        if self._failures >= _MOST_FAILURES:
            return
        try:
            call()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            if type(error) not in self._told:
                self._told.add(type(error))
                logger.warning(
                    "the tracker %s failed to keep %s; training goes on, and further errors of this kind are not told",
                    self.name,
                    what,
                    exc_info=True,
                )
            if self._failures == _MOST_FAILURES:
                logger.warning("the tracker %s failed %d times in a row and is off now", self.name, self._failures)
