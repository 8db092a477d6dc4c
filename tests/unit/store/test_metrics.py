"""Metrics on disk: written and read on each kind of volume; lives that supersede each other; a golden folder."""

import json
import math
from pathlib import Path

import pytest

from ponente.store.formats import FormatError
from ponente.store.metrics import Histogram, MetricWriter, begin_metrics, read_metrics, read_summary
from ponente.store.volume import volume_of

GOLDEN = Path(__file__).with_name("golden")
HISTOGRAM = Histogram(edges=(-1.0, 0.5, math.inf), counts=(3.0, 4.0), sum=2.5, sum_squares=7.25)


def losses(folder: str) -> dict[int, object]:
    """train/loss by step; fails where a step stands twice."""
    rows = list(read_metrics(folder))
    assert len({row.step for row in rows}) == len(rows)
    return {row.step: row.metrics["train/loss"] for row in rows}


def log(writer: MetricWriter, steps: range, value: float) -> None:
    for step in steps:
        writer.add({"train/loss": value}, step)


def test_a_run_that_logged_nothing_has_no_metrics(folder: str) -> None:
    assert list(read_metrics(folder)) == []
    assert read_summary(folder) == {}
    begin_metrics(folder, 0)
    assert list(read_metrics(folder)) == []


def test_a_folder_may_be_named_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log(writer := begin_metrics(str(tmp_path / "logs" / "run"), 0), range(2), 1.5)
    writer.add_summary({"parameter_count": 7})
    writer.publish()
    monkeypatch.chdir(tmp_path)
    assert losses("logs/run") == {0: 1.5, 1: 1.5}
    assert read_summary("logs/run") == {"parameter_count": 7}


def test_metrics_are_read_as_they_were_logged(folder: str) -> None:
    writer = begin_metrics(folder, 0)
    writer.add({"train/loss": 3.25, "optim/learning_rate": 1e-300}, 0)
    writer.add({"grad/norm": 7, "grad/histogram": HISTOGRAM}, 1)
    writer.add_summary({"parameter_count": 124_000_000})
    writer.publish()
    first, second = read_metrics(folder)
    assert (first.step, first.metrics) == (0, {"train/loss": 3.25, "optim/learning_rate": 1e-300})
    assert (second.step, second.metrics) == (1, {"grad/norm": 7.0, "grad/histogram": HISTOGRAM})
    assert second.time >= first.time > 1.7e9
    assert read_summary(folder) == {"parameter_count": 124e6}


def test_what_is_not_published_is_not_seen(folder: str) -> None:
    writer = begin_metrics(folder, 0)
    log(writer, range(2), 1.0)
    writer.publish()
    log(writer, range(2, 4), 1.0)
    assert list(losses(folder)) == [0, 1]


def test_parts_of_a_step_are_one_row(folder: str) -> None:
    writer = begin_metrics(folder, 0)
    log(writer, range(3), 1.0)
    writer.add({"eval/loss": 2.0}, 1)
    writer.add({"train/loss": 5.0}, 1)
    writer.publish()
    assert [row.step for row in read_metrics(folder)] == [0, 1, 2]
    assert list(read_metrics(folder))[1].metrics == {"train/loss": 5.0, "eval/loss": 2.0}


def test_metrics_can_be_read_by_name(folder: str) -> None:
    writer = begin_metrics(folder, 0)
    log(writer, range(3), 1.0)
    writer.add({"eval/loss": 2.0}, 1)
    writer.publish()
    assert [(row.step, row.metrics) for row in read_metrics(folder, ["eval/loss"])] == [(1, {"eval/loss": 2.0})]


def test_non_finite_numbers_survive_and_the_lines_are_json(tmp_path: Path) -> None:
    values = {"nan": math.nan, "up": math.inf, "down": -math.inf, "fine": -0.0}
    writer = begin_metrics(str(tmp_path), 0)
    writer.add(values, 0)
    writer.publish()

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    for line in (tmp_path / "metrics" / "0001-000000.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    (row,) = read_metrics(str(tmp_path))
    assert repr(row.metrics) == repr(values)


def test_a_later_life_supersedes_the_steps_it_logs_again(folder: str) -> None:
    first = begin_metrics(folder, 0)
    log(first, range(10), 1.0)
    first.publish()
    second = begin_metrics(folder, 6)
    assert losses(folder) == dict.fromkeys(range(6), 1.0)
    log(second, range(6, 12), 2.0)
    second.publish()
    assert losses(folder) == {**dict.fromkeys(range(6), 1.0), **dict.fromkeys(range(6, 12), 2.0)}


def test_a_life_that_goes_further_back_supersedes_all_between(folder: str) -> None:
    for first_step, value in ((0, 1.0), (8, 2.0), (4, 3.0), (5, 4.0)):
        writer = begin_metrics(folder, first_step)
        log(writer, range(first_step, first_step + 6), value)
        writer.publish()
    assert losses(folder) == {**dict.fromkeys(range(4), 1.0), 4: 3.0, **dict.fromkeys(range(5, 11), 4.0)}


def test_an_earlier_life_that_still_writes_changes_nothing(folder: str) -> None:
    old = begin_metrics(folder, 0)
    log(old, range(5), 1.0)
    old.publish()
    new = begin_metrics(folder, 3)
    log(new, range(3, 6), 2.0)
    new.publish()
    log(old, range(5, 9), 1.0)
    old.publish()
    assert losses(folder) == {**dict.fromkeys(range(3), 1.0), **dict.fromkeys(range(3, 6), 2.0)}


def test_long_runs_are_cut_into_segments(folder: str) -> None:
    writer = begin_metrics(folder, 0, segment_bytes=1000)
    for step in range(100):
        writer.add({"train/loss": float(step)}, step)
    writer.publish()
    names = volume_of(folder).names(f"{folder}/metrics")
    assert len(names) > 5
    assert all(volume_of(folder).size(f"{folder}/metrics/{name}") < 1100 for name in names)
    assert losses(folder) == {step: float(step) for step in range(100)}


def test_what_cannot_be_stored_leaves_the_other_lines_whole(folder: str) -> None:
    writer = begin_metrics(folder, 0)
    log(writer, range(1), 1.0)
    with pytest.raises(TypeError):
        writer.add({"train/loss": object()}, 1)  # type: ignore[dict-item]
    log(writer, range(2, 3), 1.0)
    writer.publish()
    assert list(losses(folder)) == [0, 2]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('{"format":2,"life":1,"first_step":0,"time":0,"new":1}\n', "has format 2"),
        ('{"format":1,"life":1,"first_step":0,"time":0}\n{"time":0,"st', "line 2"),
        ('{"format":1,"life":1,"first_step":0,"time":0}\n{"time":0,"step":1,"metrics":{"a":"big"}}\n', "'big'"),
        ("", "cannot be read"),
    ],
)
def test_a_segment_that_cannot_be_read_is_named(tmp_path: Path, lines: str, found: str) -> None:
    path = tmp_path / "metrics" / "0001-000000.jsonl"
    path.parent.mkdir()
    path.write_text(lines)
    with pytest.raises(FormatError, match=found) as error:
        list(read_metrics(str(tmp_path)))
    assert str(path) in str(error.value)


def test_metrics_of_format_1_are_read_for_ever() -> None:
    """`golden/metrics-1` was written by ponente 0.1.0: three lives, and all that a line may hold."""
    folder = str(GOLDEN / "metrics-1")
    rows = {row.step: row.metrics for row in read_metrics(folder)}
    assert list(rows) == list(range(7))
    assert [rows[step]["train/loss"] for step in rows] == [4.5, 4.25, 4.0, 30.75, 30.5, 300.25, 300.0]
    assert rows[1]["eval/loss"] == 4.125
    assert repr(rows[2]["grad/norm"]) == "nan"
    assert (rows[3]["optim/up"], rows[3]["optim/down"]) == (math.inf, -math.inf)
    assert rows[6]["grad/histogram"] == HISTOGRAM
    assert read_summary(folder) == {"parameter_count": 124.0, "throughput/mfu": 0.5}
