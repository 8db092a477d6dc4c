"""The step that is running, as seen from inside it: its places, its progress, its events.

Set by whoever runs an attempt; read by `map_shards` and by user code through `report_progress`. Nothing here knows
about graphs.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ponente.cluster.resources import CpuOnly, Resources
from ponente.store.redaction import Redactor


class Progress(msgspec.Struct, frozen=True):
    """How far a step is; `total` 0 where nobody knows."""

    done: int
    total: int = 0
    unit: str = ""
    note: str = ""
    seconds: float = 0.0
    before: int = 0  # what earlier attempts had done

    def __str__(self) -> str:
        """As people read it: 700/1000 shards, 12 s left."""
        text = f"{self.done}/{self.total}" if self.total else str(self.done)
        if self.unit:
            text += f" {self.unit}"
        if self.before < self.done < self.total and self.seconds > 0:
            text += f", {self.seconds / (self.done - self.before) * (self.total - self.done):.0f} s left"
        return f"{text}, {self.note}" if self.note else text


def _ignore_progress(progress: Progress) -> None:
    return None


def _ignore_event(kind: str, data: Mapping[str, Any]) -> None:
    return None


@dataclass
class StepContext:
    """What a running attempt may use."""

    name: str
    output_path: str
    state_path: str
    resources: Resources | None = None
    publish_progress: Callable[[Progress], None] = _ignore_progress
    record_event: Callable[[str, Mapping[str, Any]], None] = _ignore_event
    redactor: Redactor = field(default_factory=Redactor)
    state_objects: set[str] = field(default_factory=set)  # names below the state path that the commit is to name
    maps: set[str] = field(default_factory=set)  # names of the sharded maps that this attempt has begun
    notes: list[str] = field(default_factory=list)  # what people should know of the result
    first_progress: dict[str, tuple[int, float]] = field(default_factory=dict)  # by unit: what was done, and when

    @property
    def num_cpus(self) -> int | None:
        """The cores that the step asked for."""
        return self.resources.num_cpus if isinstance(self.resources, CpuOnly) else None


_current: ContextVar[StepContext | None] = ContextVar("ponente_step", default=None)


def current_step() -> StepContext | None:
    """The step that this code runs in, if any."""
    return _current.get()


@contextmanager
def running_step(context: StepContext) -> Iterator[StepContext]:
    """Makes `context` the running step inside the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def report_progress(done: int, total: int = 0, *, unit: str = "", note: str = "") -> None:
    """Says how far the running step is; shown by the driver and by `ponente status`. No effect outside a step."""
    context = current_step()
    if context is not None:
        first_done, since = context.first_progress.setdefault(unit, (done, time.monotonic()))
        seconds = time.monotonic() - since
        progress = Progress(done=done, total=total, unit=unit, note=note, seconds=seconds, before=first_done)
        context.publish_progress(progress)
