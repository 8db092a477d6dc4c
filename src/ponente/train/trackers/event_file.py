"""TensorBoard's event files, written by its own writer.

A life of a run begins with the mark of a new session at its first step: TensorBoard then passes over what earlier lives
wrote from that step on, so each step stands once.
"""

import time
from typing import Any

try:
    from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from tensorboard.summary.writer import event_file_writer  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ModuleNotFoundError:  # TensorboardConfig.check has said so to whoever asked for it
    event_pb2 = summary_pb2 = event_file_writer = None

from ponente.train.trackers.tracker import Histogram, Metric, Metrics

_FLUSH_SECONDS = 5


class EventFileTracker:
    """Writes scalars and histograms."""

    name = "tensorboard"

    def __init__(self, folder: str, first_step: int) -> None:
        self._writer: Any = event_file_writer.EventFileWriter(folder, flush_secs=_FLUSH_SECONDS)
        self._last_step = first_step
        self._told: dict[str, int] = {}  # the last step of each metric
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=first_step, session_log=start))

    def log(self, metrics: Metrics, step: int) -> None:
        self._last_step = max(step, self._last_step)
        self._told |= dict.fromkeys(metrics, step)
        values = [_value(name, metric) for name, metric in metrics.items()]
        summary = summary_pb2.Summary(value=values)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

    def log_summary(self, metrics: Metrics) -> None:
        """What stands at the last step already, such as its evaluation, is not told twice."""
        self.log(
            {name: one for name, one in metrics.items() if self._told.get(name) != self._last_step}, self._last_step
        )

    def flush(self) -> None:
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def _value(name: str, metric: Metric) -> Any:
    if not isinstance(metric, Histogram):
        return summary_pb2.Summary.Value(tag=name, simple_value=metric)
    histogram = summary_pb2.HistogramProto(
        min=metric.edges[0],
        max=metric.edges[-1],
        num=sum(metric.counts),
        sum=metric.sum,
        sum_squares=metric.sum_squares,
        bucket_limit=metric.edges[1:],
        bucket=metric.counts,
    )
    return summary_pb2.Summary.Value(tag=name, histo=histogram)
