"""JSON lines in a file and in the log stream."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ponente.config.errors import RefusedError
from ponente.train.trackers import Histogram, JsonFileTrackerConfig, JsonTrackerConfig, RunInfo, check_trackers


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_log_is_one_line_of_a_file(run: RunInfo, tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    tracker = JsonTrackerConfig(path=str(path)).begin(run)
    histogram = Histogram(edges=(0.0, 1.0), counts=(2.0,), sum=1.0, sum_squares=0.5)
    tracker.log({"train/loss": 1.5, "bad": math.nan, "grad": histogram}, 4)
    assert len(events(path.read_text())) == 2  # a line is there at once
    tracker.log_summary({"parameter_count": 3})
    tracker.flush()
    tracker.finish()
    plain = {"edges": [0.0, 1.0], "counts": [2.0], "sum": 1.0, "sum_squares": 0.5}
    assert events(path.read_text()) == [
        {"tracker": "json", "event": "begin", "run": "winds-1", "first_step": 0},
        {"tracker": "json", "event": "log", "step": 4, "metrics": {"train/loss": 1.5, "bad": "NaN", "grad": plain}},
        {"tracker": "json", "event": "summary", "metrics": {"parameter_count": 3}},
        {"tracker": "json", "event": "finish"},
    ]


def test_a_run_that_goes_on_tells_each_step_once_beside_other_runs(run: RunInfo, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for life in (replace(run, run_id="other"), run, replace(run, first_step=2)):
        tracker = JsonTrackerConfig(path=str(path)).begin(life)
        for step in range(life.first_step, 4):
            tracker.log({"train/loss": float(life.first_step)}, step)
        tracker.finish()
    found = [event for event in events(path.read_text()) if event["event"] != "finish"]
    assert [event.get("run") or event["step"] for event in found] == [
        *("other", 0, 1, 2, 3),
        *("winds-1", 0, 1, "winds-1", 2, 3),
    ]
    assert [event["metrics"]["train/loss"] for event in found[-2:]] == [2.0, 2.0]
    assert [file.name for file in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


def test_half_a_line_of_a_killed_run_is_taken_out_and_foreign_lines_stay(run: RunInfo, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('not ours\n{"event":"log","step":"x"}\n{"event":"lo')
    JsonTrackerConfig(path=str(path)).begin(replace(run, first_step=2)).finish()
    lines = path.read_text().splitlines()
    assert lines[:2] == ["not ours", '{"event":"log","step":"x"}']
    assert [event["event"] for event in events("\n".join(lines[2:]))] == ["begin", "finish"]


def test_json_file_writes_to_the_runs_folder_or_another(run: RunInfo, tmp_path: Path) -> None:
    JsonFileTrackerConfig().begin(run).finish()
    JsonFileTrackerConfig(output_path=str(tmp_path / "other")).begin(run).finish()
    for folder in (Path(run.folder), tmp_path / "other"):
        assert events((folder / "metrics.jsonl").read_text())[0]["run"] == "winds-1"


def test_without_a_path_lines_go_to_the_log(run: RunInfo, caplog: pytest.LogCaptureFixture) -> None:
    tracker = JsonTrackerConfig(logger_name="winds.metrics").begin(run)
    tracker.log({"train/loss": 1.5}, 4)
    tracker.finish()
    assert {(record.name, record.levelno) for record in caplog.records} == {("winds.metrics", logging.INFO)}
    found = events("\n".join(record.getMessage() for record in caplog.records))
    assert found[1] == {"tracker": "json", "event": "log", "step": 4, "metrics": {"train/loss": 1.5}}


@pytest.mark.parametrize(
    "config", [JsonTrackerConfig(path="gs://bucket/lines.jsonl"), JsonFileTrackerConfig(output_path="gs://bucket")]
)
def test_lines_cannot_be_appended_in_a_bucket(config: JsonTrackerConfig | JsonFileTrackerConfig) -> None:
    with pytest.raises(RefusedError, match=r"gs://bucket.*needed a local path.*type: local"):
        check_trackers(config)
