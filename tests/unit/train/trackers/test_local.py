"""The default tracker, with real files: live reading, and a process that is killed while it logs."""

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ponente.config.errors import RefusedError
from ponente.store.metrics import read_metrics, read_summary
from ponente.train.trackers import LocalTrackerConfig, RunInfo, begin_trackers

ENDLESS = """
import itertools, sys
from ponente.train.trackers import LocalTrackerConfig, RunInfo, begin_trackers

tracker = begin_trackers(LocalTrackerConfig(publish_seconds=0.01), RunInfo(run_id="r", folder=sys.argv[1]))
for step in itertools.count():
    tracker.log({"train/loss": 1.0}, step)
    if step % 50 == 49:
        tracker.flush()
        print(step, flush=True)
"""


def steps(run: RunInfo) -> list[int]:
    return [row.step for row in read_metrics(run.folder)]


def test_metrics_are_seen_while_the_run_goes_on(run: RunInfo) -> None:
    tracker = LocalTrackerConfig(publish_seconds=0.05).begin(run)
    tracker.log({"train/loss": 3.0}, 0)
    assert steps(run) == [0]
    tracker.log({"train/loss": 3.0}, 1)
    assert steps(run) == [0]
    time.sleep(0.06)
    tracker.log({"train/loss": 3.0}, 2)
    assert steps(run) == [0, 1, 2]


def test_flush_and_finish_publish_what_is_left(run: RunInfo) -> None:
    tracker = LocalTrackerConfig(publish_seconds=1000).begin(run)
    for step in range(3):
        tracker.log({"train/loss": 3.0}, step)
    tracker.flush()
    assert steps(run) == [0, 1, 2]
    tracker.log({"train/loss": 3.0}, 3)
    tracker.log_summary({"parameter_count": 5})
    tracker.finish()
    assert steps(run) == [0, 1, 2, 3]
    assert read_summary(run.folder) == {"parameter_count": 5.0}


def test_a_killed_run_keeps_what_it_flushed_and_each_step_stands_once_after_a_resume(run: RunInfo) -> None:
    command = [sys.executable, "-c", ENDLESS, run.folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(4)][-1]
        process.send_signal(signal.SIGKILL)
    found = steps(run)
    assert found == list(range(len(found))) and len(found) > flushed
    tracker = begin_trackers(LocalTrackerConfig(), replace(run, first_step=100))
    for step in range(100, 110):
        tracker.log({"train/loss": 2.0}, step)
    tracker.finish()
    rows = list(read_metrics(run.folder))
    assert [row.step for row in rows] == list(range(110))
    assert [row.metrics["train/loss"] for row in rows] == [1.0] * 100 + [2.0] * 10


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(RefusedError, match="publish_seconds: -1"):
        LocalTrackerConfig(publish_seconds=-1)
