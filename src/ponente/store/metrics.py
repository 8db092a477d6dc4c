"""The metrics of a run on disk: JSON lines in segments, each published whole, so that a reader never meets half a line.

`{run}/metrics/LLLL-SSSSSS.jsonl` is segment S of life L: a run that is resumed begins another life. The first line of
a segment says its format, life and the first step that the life logs; the others hold the metrics of one step, or
summaries. Steps from a later life's first one on are superseded, so each step stands once. NaN and the infinities,
which JSON lacks, stand as text.
"""

import math
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ponente.store.formats import FormatError, decode_record
from ponente.store.paths import absolute, join
from ponente.store.volume import volume_of

FORMAT = 1
_SEGMENT_BYTES = 1 << 20  # a segment that would have more is closed
_FOLDER = "metrics"
_NAME = re.compile(r"(\d{4,})-(\d{6,})\.jsonl")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often values fall between edges; `edges` has one more than `counts`."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    sum_squares: float


Metric = float | Histogram


@dataclass(frozen=True)
class MetricRow:
    """All that was logged at one step; `time` is that of the last of it."""

    step: int
    time: float
    metrics: dict[str, Metric]


class _Header(msgspec.Struct, frozen=True):
    life: int
    first_step: int
    time: float
    format: int = FORMAT


class _StoredHistogram(msgspec.Struct, frozen=True):
    edges: list[float | str]
    counts: list[float | str]
    sum: float | str
    sum_squares: float | str


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    time: float
    step: int | None = None
    metrics: dict[str, float | str | _StoredHistogram] = {}
    summary: dict[str, float | str | _StoredHistogram] = {}


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def json_number(value: float) -> float | str:
    """A number as JSON can hold it: itself, or "NaN", "Infinity", "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_metric(value: Metric) -> object:
    """A metric as JSON can hold it: a number, or a histogram as its fields."""
    if not isinstance(value, Histogram):
        return json_number(value)
    return {
        "edges": [json_number(edge) for edge in value.edges],
        "counts": [json_number(count) for count in value.counts],
        "sum": json_number(value.sum),
        "sum_squares": json_number(value.sum_squares),
    }


class MetricWriter:
    """Writes one life of a run. Lines are seen once they are published; `begin_metrics` makes one."""

    def __init__(self, folder: str, header: _Header, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._volume = volume_of(folder)
        self._header = header
        self._segment = 0
        self._bytes = bytearray(_header_line(header))
        self._is_published = True

    def add(self, metrics: Mapping[str, Metric], step: int) -> None:
        """Takes the metrics of a step."""
        named = {name: json_metric(value) for name, value in metrics.items()}
        self._append({"time": time.time(), "step": step, "metrics": named})

    def add_summary(self, metrics: Mapping[str, Metric]) -> None:
        """Takes metrics of the run as a whole; the last value of a name stands."""
        named = {name: json_metric(value) for name, value in metrics.items()}
        self._append({"time": time.time(), "summary": named})

    def publish(self) -> None:
        """Makes all lines so far visible."""
        if not self._is_published:
            self._volume.replace(_path(self._folder, self._header.life, self._segment), bytes(self._bytes))
            self._is_published = True

    def _append(self, line: dict[str, object]) -> None:
        data = msgspec.json.encode(line)  # first, so that what cannot be encoded leaves nothing behind
        if len(self._bytes) + len(data) > self._segment_bytes:
            self.publish()
            self._segment += 1
            self._bytes = bytearray(_header_line(self._header))
        self._bytes += data + b"\n"
        self._is_published = False


def begin_metrics(run_folder: str, first_step: int, *, segment_bytes: int = _SEGMENT_BYTES) -> MetricWriter:
    """A writer for a new life of the run in `run_folder`; earlier lives' steps from `first_step` on are superseded.

    A life's number is taken by exclusive create, so a process of an earlier life that still writes does no harm.
    """
    folder = join(absolute(run_folder), _FOLDER)
    volume = volume_of(folder)
    life = max((life for life, _ in _segments(folder)), default=0)
    while True:
        life += 1
        header = _Header(life=life, first_step=first_step, time=time.time())
        if volume.create(_path(folder, life, 0), _header_line(header)):
            return MetricWriter(folder, header, segment_bytes)


def read_metrics(run_folder: str, names: Collection[str] | None = None) -> Iterator[MetricRow]:
    """The metrics of a run by rising step, each step once; none where the run has logged nothing.

    Args:
        names: read only these metrics, and steps that have any of them.
    """
    folder = join(absolute(run_folder), _FOLDER)
    lives: dict[int, list[int]] = {}
    for life, segment in _segments(folder):
        lives.setdefault(life, []).append(segment)
    for life, end in _ends(folder, lives):
        rows: dict[int, MetricRow] = {}
        for path, line in _lines(folder, life, lives[life]):
            if line.step is None or (end is not None and line.step >= end):
                continue
            stored = {name: value for name, value in line.metrics.items() if names is None or name in names}
            metrics = {name: _metric(value, path) for name, value in stored.items()}
            if metrics or names is None:
                before = rows[line.step].metrics if line.step in rows else {}
                rows[line.step] = MetricRow(line.step, line.time, {**before, **metrics})
        yield from (rows[step] for step in sorted(rows))


def read_summary(run_folder: str) -> dict[str, Metric]:
    """The metrics of a run as a whole: the last value of each name."""
    folder = join(absolute(run_folder), _FOLDER)
    found: dict[str, Metric] = {}
    for life, segment in _segments(folder):
        for path, line in _lines(folder, life, [segment]):
            found.update({name: _metric(value, path) for name, value in line.summary.items()})
    return found


def _segments(folder: str) -> list[tuple[int, int]]:
    """The life and number of every segment, in order."""
    matches = (_NAME.fullmatch(name) for name in volume_of(folder).names(folder))
    return sorted((int(match[1]), int(match[2])) for match in matches if match is not None)


def _ends(folder: str, lives: Collection[int]) -> list[tuple[int, int | None]]:
    """Each life, in order, with the step from which on a later one supersedes it."""
    ends: list[tuple[int, int | None]] = []
    end: int | None = None
    for life in sorted(lives, reverse=True):
        ends.append((life, end))
        path = _path(folder, life, 0)
        first = _header_of(path, volume_of(folder).read(path)).first_step
        end = first if end is None else min(first, end)
    return ends[::-1]


def _lines(folder: str, life: int, segments: Collection[int]) -> Iterator[tuple[str, _Line]]:
    for segment in segments:
        path = _path(folder, life, segment)
        data = volume_of(folder).read(path)
        _header_of(path, data)
        for number, text in enumerate(data.splitlines()[1:], start=2):
            try:
                yield path, _decode_line(text)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _damaged(path, f"line {number}: {error}") from error


def _header_of(path: str, data: bytes) -> _Header:
    return decode_record(path, data.partition(b"\n")[0], _decode_header, FORMAT)


def _header_line(header: _Header) -> bytes:
    return msgspec.json.encode(header) + b"\n"


def _metric(stored: float | str | _StoredHistogram, path: str) -> Metric:
    if not isinstance(stored, _StoredHistogram):
        return _number(stored, path)
    return Histogram(
        edges=tuple(_number(edge, path) for edge in stored.edges),
        counts=tuple(_number(count, path) for count in stored.counts),
        sum=_number(stored.sum, path),
        sum_squares=_number(stored.sum_squares, path),
    )


def _number(stored: float | str, path: str) -> float:
    if not isinstance(stored, str):
        return stored
    if stored not in _NON_FINITE:
        raise _damaged(path, f"the text {stored!r} where a number was needed")
    return _NON_FINITE[stored]


def _damaged(path: str, found: str) -> FormatError:
    return FormatError(f"{path} cannot be read ({found}); restore it, or remove it")


def _path(folder: str, life: int, segment: int) -> str:
    return f"{folder}/{life:04d}-{segment:06d}.jsonl"
