"""The trackers of a run, from its config: each in the background, all as one."""

from collections.abc import Sequence

from ponente.train.trackers.background import in_background
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.several import several
from ponente.train.trackers.tracker import RunInfo, Tracker

Trackers = TrackerConfig | Sequence[TrackerConfig] | None  # one, several, or none


def check_trackers(trackers: Trackers) -> None:
    """Raises a UserError if one of them cannot work here; call it before any work is done."""
    for config in _listed(trackers):
        config.check()


def begin_trackers(trackers: Trackers, run: RunInfo) -> Tracker:
    """Begins to track a run, in one process of it. Afterwards errors of trackers are warnings, and none blocks.

    What it gives may be finished twice.
    """
    begun: list[Tracker] = []
    try:
        for config in _listed(trackers):
            begun.append(in_background(config.begin(run)))
    except BaseException:
        several(begun).finish()
        raise
    return several(begun)


def _listed(trackers: Trackers) -> Sequence[TrackerConfig]:
    if trackers is None:
        return ()
    return (trackers,) if isinstance(trackers, TrackerConfig) else trackers
