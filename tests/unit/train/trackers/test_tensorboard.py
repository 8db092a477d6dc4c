"""TensorBoard's event files, read back by TensorBoard itself."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ponente.config.errors import RefusedError
from ponente.train.trackers import (
    Histogram,
    LocalTrackerConfig,
    RunInfo,
    TensorboardConfig,
    begin_trackers,
    check_trackers,
)


def read_back(folder: Path) -> Any:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def board(run: RunInfo) -> Path:
    """Beside the run's folder, where the boards of all runs are."""
    return Path(run.folder).parent / "tensorboard" / run.run_id


def test_scalars_and_histograms_are_read_back(run: RunInfo) -> None:
    tracker = TensorboardConfig().begin(run)
    histogram = Histogram(edges=(-1.0, 0.0, 2.0), counts=(3.0, 1.0), sum=-0.5, sum_squares=2.25)
    tracker.log({"train/loss": 2.5, "grad/histogram": histogram}, 7)
    tracker.log({"train/loss": math.nan}, 8)
    tracker.log_summary({"parameter_count": 128, "train/loss": math.nan})  # the last of which stands there already
    tracker.finish()
    found = read_back(board(run))
    assert [(event.step, repr(event.value)) for event in found.Scalars("train/loss")] == [(7, "2.5"), (8, "nan")]
    assert [(event.step, event.value) for event in found.Scalars("parameter_count")] == [(8, 128.0)]
    value = found.Histograms("grad/histogram")[0].histogram_value
    assert (value.min, value.max, value.num, value.sum, value.sum_squares) == (-1.0, 2.0, 4.0, -0.5, 2.25)
    assert (list(value.bucket_limit), list(value.bucket)) == ([0.0, 2.0], [3.0, 1.0])


def test_each_step_stands_once_after_a_resume(run: RunInfo) -> None:
    for first_step, value in ((0, 1.0), (6, 2.0)):
        tracker = TensorboardConfig().begin(replace(run, first_step=first_step))
        for step in range(first_step, first_step + 10):
            tracker.log({"train/loss": value}, step)
        tracker.finish()
    found = read_back(board(run)).Scalars("train/loss")
    assert [event.step for event in found] == list(range(16))
    assert [event.value for event in found] == [1.0] * 6 + [2.0] * 10


def test_runs_share_a_logdir_each_in_a_folder_of_its_own(run: RunInfo, tmp_path: Path) -> None:
    tracker = TensorboardConfig(logdir=str(tmp_path / "boards")).begin(run)
    tracker.log({"train/loss": 2.5}, 1)
    tracker.finish()
    assert len(read_back(tmp_path / "boards" / "winds-1").Scalars("train/loss")) == 1


def test_without_the_package_it_is_refused_before_any_work(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for ask in (check_trackers, lambda trackers: begin_trackers(trackers, run)):
        with pytest.raises(RefusedError, match=r"found .*tensorboard.*; needed .*pip install 'ponente\[tensorboard\]'"):
            ask([LocalTrackerConfig(), TensorboardConfig()])
