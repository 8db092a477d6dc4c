"""Curves as a picture: an SVG of lines over two axes, and a step that draws the losses of training runs.

In: named points, or the logs of `train_step`s. Out: the text of an SVG, which browsers and GitHub show; no package is
needed to draw it.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ponente.config.errors import UserError
from ponente.executor import Summary, this_output_path
from ponente.experiment.training import RUN
from ponente.store.metrics import read_metrics
from ponente.store.paths import join
from ponente.store.volume import volume_of

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
TRAIN, VALIDATION, TOKENS = "train/loss", "eval/loss", "throughput/total_tokens"
PICTURE, TABLE = "losses.svg", "losses.csv"
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 44  # margins
_LETTER = 6.5  # the width of one, more or less
_ROOM = 0.03  # of the vertical axis, below the lowest point
_MOST_POINTS = 400  # of a curve that are drawn; where there are more, means of neighbours are

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points in the order of their first number, none of them NaN or infinite; dotted ones are marked, too."""

    name: str
    points: Sequence[Point]
    colour: str
    is_dotted: bool = False


def picture(
    curves: Sequence[Curve], *, across: str, down: str, top: float | None = None, width: int = 720, height: int = 400
) -> str:
    """The curves as SVG.

    Args:
        across: what the first numbers are, `down` the second.
        top: where the vertical axis ends; by default at the largest number.
    """
    drawn = [(curve, _thinned(curve.points)) for curve in curves if curve.points]
    if not drawn:
        raise ValueError("found no curve with a point; needed one to draw")
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y for _, points in drawn for _, y in points]
    names = [f"{curve.name}: {curve.points[-1][1]:.3f}" for curve, _ in drawn]
    right = round(width - 2 * _RIGHT - _LETTER * max(map(len, names)))  # names stand behind it
    highest = max(ys) if top is None else max(min(ys), min(top, max(ys)))
    horizontal = _Axis(min(xs), max(xs), _LEFT, right)
    vertical = _Axis(min(ys) - _ROOM * (highest - min(ys)), highest, height - _BOTTOM, _TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<clipPath id="inside"><rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" '
        f'height="{height - _TOP - _BOTTOM}"/></clipPath>',
    ]
    for value in vertical.ticks():
        y = vertical.place(value)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_told(value)}</text>')
    for value in horizontal.ticks():
        x = horizontal.place(value)
        lines.append(f'<path d="M{x:.1f} {_TOP}V{height - _BOTTOM}" stroke="#eee"/>')
        lines.append(f'<text x="{x:.1f}" y="{height - _BOTTOM + 16}" text-anchor="middle">{_told(value)}</text>')
    for number, ((curve, points), name) in enumerate(zip(drawn, names, strict=True)):
        lines += _drawn(curve, [(horizontal.place(x), vertical.place(y)) for x, y in points])
        place = f'x="{right + _RIGHT}" y="{_TOP + 12 + 18 * number}"'
        lines.append(f'<text {place} fill="{curve.colour}">{escape(name)}</text>')
    middle = (_LEFT + right) / 2
    lines.append(f'<text x="{middle:.0f}" y="{height - 8}" text-anchor="middle">{escape(across)}</text>')
    upright = f"rotate(-90) translate({-(_TOP + height - _BOTTOM) / 2:.0f} 14)"
    lines.append(f'<text transform="{upright}" text-anchor="middle">{escape(down)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


@dataclass(frozen=True, kw_only=True)
class CurvesConfig:
    """Losses of training steps: their logs (`step / "logs"`) by the names that the curves get."""

    logs: dict[str, str]
    output_path: str = this_output_path()


def draw_losses(config: CurvesConfig) -> Summary:
    """Draws training and validation losses over tokens, and lists the points beside the picture.

    The first tenth of the tokens may leave the picture at its top: a loss begins far above all that is worth seeing.
    """
    curves, ends = [], {}
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["run", "metric", "tokens", "loss"])
    for number, (name, place) in enumerate(config.logs.items()):
        losses = losses_of(join(place, RUN))
        for metric, points in losses.items():
            rows.writerows([name, metric, f"{tokens:.0f}", f"{loss:.6f}"] for tokens, loss in points)
            shown = f"{name}, {'training' if metric == TRAIN else 'validation (dashed)'}"
            colour = COLOURS[number % len(COLOURS)]
            curves.append(Curve(name=shown, points=points, colour=colour, is_dotted=metric == VALIDATION))
        if losses.get(VALIDATION):
            ends[name] = losses[VALIDATION][-1][1]
    if not curves:
        read = ", ".join(f"{name}: {join(place, RUN)}" for name, place in config.logs.items())
        raise UserError(
            f"found no finite {TRAIN} or {VALIDATION} in the logs read ({read or 'none'}); needed one to draw. "
            "See whether these runs took a step and whether their losses are NaN, and train them again or name others."
        )
    end = max(tokens for curve in curves for tokens, _ in curve.points)
    later = [loss for curve in curves for tokens, loss in curve.points if tokens >= end / 10]
    drawing = picture(curves, across="tokens", down="loss, nats a token", top=max(later))
    volume = volume_of(config.output_path)
    volume.replace(join(config.output_path, PICTURE), drawing.encode())
    volume.replace(join(config.output_path, TABLE), table.getvalue().encode())
    return Summary(values=ends)


def losses_of(run: str) -> dict[str, list[Point]]:
    """The training and validation losses of a run's folder: each with the tokens that the model had seen then."""
    found: dict[str, list[Point]] = {TRAIN: [], VALIDATION: []}
    seen = 0.0
    for row in read_metrics(run):
        for metric, points in found.items():
            value: Any = row.metrics.get(metric)
            if value is not None and math.isfinite(value):
                points.append((seen, value))
        after: Any = row.metrics.get(TOKENS)
        seen = seen if after is None else after
    return {metric: points for metric, points in found.items() if points}


@dataclass(frozen=True)
class _Axis:
    first: float
    last: float
    begin: float  # in the picture
    end: float

    def place(self, value: float) -> float:
        share = (value - self.first) / ((self.last - self.first) or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round numbers, about six of them."""
        rough = ((self.last - self.first) or 1.0) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        return [n * step for n in range(math.ceil(self.first / step), math.floor(self.last / step + 1e-9) + 1)]


def _thinned(points: Sequence[Point]) -> list[Point]:
    size = math.ceil(len(points) / _MOST_POINTS)
    groups = (points[first : first + size] for first in range(0, len(points), size))
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _drawn(curve: Curve, places: list[Point]) -> list[str]:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    look = 'stroke-width="1.6" stroke-dasharray="5 3"' if curve.is_dotted else 'stroke-width="1.2"'
    line = f'<polyline fill="none" stroke="{curve.colour}" {look} points="{points}" clip-path="url(#inside)"/>'
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{curve.colour}"/>' for x, y in places if y >= _TOP]
    return [line, *(dots if curve.is_dotted else [])]


def _told(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.10g}"
