"""One JSON line for each log: to the log stream, or to a file.

A line is `{"tracker", "event": begin | log | summary | finish, "step", "metrics"}`. A run that goes on takes out of the
file what it will tell again; a log stream has it twice. `store.metrics` is the format to build on.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ponente.config.errors import RefusedError
from ponente.store.metrics import json_metric
from ponente.store.paths import absolute, protocol_of
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.tracker import Metrics, RunInfo, Tracker

_FILE = "metrics.jsonl"


class JsonTracker:
    """Gives each line to `write`, and calls `close` at the end."""

    name = "json"

    def __init__(self, write: Callable[[str], None], flush: Callable[[], None], close: Callable[[], None]) -> None:
        self._write = write
        self._flush = flush
        self._close = close

    def begin(self, run: RunInfo) -> None:
        self._event("begin", {"run": run.run_id, "first_step": run.first_step})

    def log(self, metrics: Metrics, step: int) -> None:
        self._event("log", {"step": step, "metrics": _plain(metrics)})

    def log_summary(self, metrics: Metrics) -> None:
        self._event("summary", {"metrics": _plain(metrics)})

    def flush(self) -> None:
        self._flush()

    def finish(self) -> None:
        try:
            self._event("finish", {})
        finally:
            self._close()

    def _event(self, event: str, fields: Mapping[str, Any]) -> None:
        self._write(msgspec.json.encode({"tracker": self.name, "event": event, **fields}).decode())


class _Event(msgspec.Struct, frozen=True):
    """Of a line, what tells to which step of which run it belongs."""

    event: str = ""
    run: str = ""
    step: int = -1


def _plain(metrics: Metrics) -> dict[str, object]:
    return {name: json_metric(value) for name, value in metrics.items()}


def track_in_log(logger_name: str, level: int, run: RunInfo) -> JsonTracker:
    """A tracker that logs its lines through `logging`."""
    stream = logging.getLogger(logger_name)
    stream.setLevel(level)
    tracker = JsonTracker(lambda line: stream.log(level, "%s", line), lambda: None, lambda: None)
    tracker.begin(run)
    return tracker


def track_in_file(path: str, run: RunInfo) -> JsonTracker:
    """A tracker that appends its lines to a local file, behind what earlier lives told of earlier steps."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        _drop_steps(path, run)
    file = open(path, "ab")  # noqa: SIM115 - finish() closes it

    def write(line: str) -> None:
        file.write(line.encode() + b"\n")
        file.flush()

    tracker = JsonTracker(write, lambda: os.fsync(file.fileno()), file.close)
    tracker.begin(run)
    return tracker


def _drop_steps(path: str, run: RunInfo) -> None:
    """Takes out what the run told of steps from its first one on, and a line that a killed life left unfinished."""
    new = f"{path}.{os.getpid()}"
    teller = None
    with open(path, "rb") as told, open(new, "wb") as kept:
        for line in told:
            event = _event_of(line)
            if event.event == "begin":
                teller = event.run
            is_told_again = event.event == "log" and event.step >= run.first_step
            if line.endswith(b"\n") and not (teller == run.run_id and is_told_again):
                kept.write(line)
        kept.flush()
        os.fsync(kept.fileno())
    os.replace(new, path)


def _event_of(line: bytes) -> _Event:
    try:
        return msgspec.json.decode(line, type=_Event)
    except msgspec.DecodeError:  # not ours, or cut short
        return _Event()


def _local(path: str) -> str:
    if protocol_of(path) not in ("file", "local"):
        raise RefusedError(
            f"found {path} for a tracker of JSON lines; needed a local path, for lines are appended. Give one, or use "
            "type: local, which writes wherever the run's folder is."
        )
    return absolute(path)


@TrackerConfig.register_subclass("json_logger")
@TrackerConfig.register_subclass("json")
@dataclass(frozen=True, kw_only=True)
class JsonTrackerConfig(TrackerConfig):
    """JSON lines to a file, or to the log stream where no `path` is given."""

    path: str | None = None
    logger_name: str = "ponente.metrics"
    level: int = logging.INFO

    def check(self) -> None:
        if self.path is not None:
            _local(self.path)

    def begin(self, run: RunInfo) -> Tracker:
        if self.path is None:
            return track_in_log(self.logger_name, self.level, run)
        return track_in_file(_local(self.path), run)


@TrackerConfig.register_subclass("json_file")
@dataclass(frozen=True, kw_only=True)
class JsonFileTrackerConfig(TrackerConfig):
    """JSON lines to metrics.jsonl in `output_path`, by default the run's folder."""

    output_path: str | None = None

    def check(self) -> None:
        if self.output_path:
            _local(self.output_path)

    def begin(self, run: RunInfo) -> Tracker:
        return track_in_file(f"{_local(self.output_path or run.folder)}/{_FILE}", run)
