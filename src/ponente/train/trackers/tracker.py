"""What a tracker is: it is told the metrics of each step, and shows or keeps them somewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ponente.store.metrics import Histogram, Metric
from ponente.store.paths import absolute, protocol_of

__all__ = ["Histogram", "Metric", "Metrics", "RunInfo", "Tracker"]

Metrics = Mapping[str, Metric]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a tracker may know of the run. `first_step` is the first step that this life of the run will log."""

    run_id: str
    folder: str  # of the run, absolute
    config: Mapping[str, Any] = field(default_factory=dict)  # as plain values, without secrets
    first_step: int = 0
    name: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def local_folder(self) -> str:
        """The run's folder, or one here where that is in a bucket: for libraries that write to disks alone."""
        return self.folder if protocol_of(self.folder) == "file" else absolute(f"logs/{self.run_id}")


class Tracker(Protocol):
    """Takes metrics as Python numbers: it must not touch a device. Whoever calls it need not handle its errors."""

    @property
    def name(self) -> str:
        """What warnings call it."""

    def log(self, metrics: Metrics, step: int) -> None:
        """Takes metrics of a step; a step may be told in several parts."""

    def log_summary(self, metrics: Metrics) -> None:
        """Takes metrics of the run as a whole, such as its number of parameters."""

    def flush(self) -> None:
        """Returns when all that was told would outlive this process. Call it before a checkpoint becomes visible:
        a run that resumes there does not log earlier steps again."""

    def finish(self) -> None:
        """Ends the run; nothing is told after."""
