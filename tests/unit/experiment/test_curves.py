"""Curves as SVG: all points are inside, and losses stand at the tokens that had been seen."""

import csv
import math
import re
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

from ponente.config.errors import UserError
from ponente.experiment.curves import Curve, CurvesConfig, draw_losses, losses_of, picture
from ponente.experiment.training import RUN
from ponente.store.metrics import begin_metrics

SVG = "{http://www.w3.org/2000/svg}"


def write_run(folder: Path, losses: list[float], last: float = 2.5) -> None:
    """A run of 100 tokens a step, evaluated after its last."""
    writer = begin_metrics(str(folder / RUN), 0)
    for step, loss in enumerate(losses):
        writer.add({"train/loss": loss, "throughput/total_tokens": 100.0 * (step + 1)}, step)
    writer.add({"eval/loss": last}, len(losses))
    writer.publish()


def lines_of(drawing: str) -> list[list[tuple[float, float]]]:
    found = [line.get("points", "") for line in Xml.fromstring(drawing).iter(f"{SVG}polyline")]
    return [[(float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", points)] for points in found]


def test_curves_fill_the_picture_and_fall_where_numbers_do() -> None:
    points = [(step, 10 / (step + 1)) for step in range(5_000)]
    (line,) = lines_of(picture([Curve(name="a <b>", points=points, colour="red")], across="steps", down="loss"))
    assert len(line) <= 400
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert [y for _, y in line] == sorted(y for _, y in line)  # which is down
    assert all(56 <= x <= 704 and 16 <= y <= 356 for x, y in line)


def test_what_is_above_the_top_is_above_the_frame() -> None:
    points = [(0, 9.0), (1, 2.0), (2, 1.0)]
    (line,) = lines_of(picture([Curve(name="a", points=points, colour="red")], across="", down="", top=2.0))
    assert line[0][1] < line[1][1] == 16


def test_one_point_is_a_picture_and_none_is_an_error() -> None:
    assert "<svg" in picture([Curve(name="a", points=[(0, 1.0)], colour="red", is_dotted=True)], across="", down="")
    with pytest.raises(ValueError, match="found no curve with a point"):
        picture([], across="", down="")


def test_losses_stand_at_the_tokens_that_the_model_had_seen(tmp_path: Path) -> None:
    write_run(tmp_path, [5.0, math.nan, 3.0])
    assert losses_of(str(tmp_path / RUN)) == {"train/loss": [(0, 5.0), (200, 3.0)], "eval/loss": [(300, 2.5)]}


def test_losses_of_several_runs_are_drawn_and_listed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name, [5.0, 4.0])
    logs = {name: str(tmp_path / name) for name in ("one", "two")}
    summary = draw_losses(CurvesConfig(logs=logs, output_path=str(tmp_path / "out")))
    assert summary.values == {"one": 2.5, "two": 2.5}
    assert len(lines_of((tmp_path / "out" / "losses.svg").read_text())) == 4
    rows = list(csv.DictReader((tmp_path / "out" / "losses.csv").read_text().splitlines()))
    assert [row["tokens"] for row in rows] == ["0", "100", "200"] * 2


def test_logs_without_a_finite_loss_are_named_and_nothing_is_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "diverged", [math.nan, math.inf], last=math.nan)
    logs = {name: str(tmp_path / name) for name in ("diverged", "never_begun")}
    with pytest.raises(
        UserError, match=r"no finite .*diverged: .*/diverged/model, never_begun: .*; needed one"
    ) as told:
        draw_losses(CurvesConfig(logs=logs, output_path=str(tmp_path / "out")))
    assert "train them again or name others" in str(told.value)
    assert not (tmp_path / "out").exists()
