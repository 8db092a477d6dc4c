"""A run to track, and a tracker that remembers what it was told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponente.train.trackers import Metrics, RunInfo


class Memory:
    """A tracker that keeps everything in lists; `on_log` may raise or block."""

    def __init__(self, name: str = "memory", on_log: Callable[[int], object] = lambda step: None) -> None:
        self.name = name
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.flushed: list[int] = []  # how many records there were
        self.is_finished = False
        self._on_log = on_log

    def log(self, metrics: Metrics, step: int) -> None:
        self._on_log(step)
        self.logged.append((step, dict(metrics)))

    def log_summary(self, metrics: Metrics) -> None:
        self.summary.update(metrics)

    def flush(self) -> None:
        self.flushed.append(len(self.logged))

    def finish(self) -> None:
        self.is_finished = True

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.logged]


@pytest.fixture
def make_memory() -> type[Memory]:
    return Memory


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo(run_id="winds-1", folder=str(tmp_path / "winds-1"), config={"model": {"layers": 2}}, tags=("west",))
