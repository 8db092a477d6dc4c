"""The loop over steps: batches in, metrics out, and in between what is due: evaluation, checkpoints, export.

The host stays a step ahead of the device: the numbers of a step are fetched while the next one runs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ponente.batches.batch import Batch
from ponente.batches.loader import Loader
from ponente.train.agreement import Agreement
from ponente.train.finiteness import check_finite
from ponente.train.profiling import Profiler
from ponente.train.setup import Setup
from ponente.train.state import TrainState
from ponente.train.step import StepMetrics, TrainStep
from ponente.train.throughput import Throughput
from ponente.train.trackers.tracker import Tracker
from ponente.train.watchdog import Watchdog

logger = logging.getLogger(__name__)


class Hook(Protocol):
    """Something that is done between steps. At step n, n updates have been made."""

    def is_due(self, step: int, *, is_last: bool) -> bool: ...

    def __call__(self, state: TrainState, step: int) -> None: ...


@dataclass(frozen=True)
class Every:
    """A hook every so many steps, and at the end."""

    steps: int | None  # None: only at the end
    act: Callable[[TrainState, int], None]

    def is_due(self, step: int, *, is_last: bool) -> bool:
        return is_last or (self.steps is not None and step > 0 and step % self.steps == 0)

    def __call__(self, state: TrainState, step: int) -> None:
        self.act(state, step)


@dataclass(frozen=True)
class StepReport:
    """What is known of a step when it has ended."""

    step: int
    loss: float
    metrics: dict[str, float]


@dataclass(kw_only=True)
class Loop:
    """Steps of a run, from where its state is to the last."""

    setup: Setup
    step: TrainStep
    hooks: Sequence[Hook]
    tracker: Tracker
    throughput: Throughput
    watchdog: Watchdog
    profiler: Profiler
    on_step: Callable[[StepReport], None]
    agreement: Agreement
    placing: threading.Lock  # the loader's
    loss: float | None = None  # of the last step that has ended

    def run(self, state: TrainState, loader: Loader, first: int) -> tuple[TrainState, int]:
        """The state after the last step, or where the run was asked to stop, and how many steps were made."""
        last, done = self.setup.steps, first
        pending: tuple[int, StepMetrics] | None = None
        self.throughput.start()
        if first > 0:  # the life before may have ended between saving and what else was due
            self._act([hook for hook in self.hooks if hook.is_due(first, is_last=first >= last)], state, first)
        if first >= last:
            logger.info("nothing is left to train: %s steps are made", f"{first:,}")
        for step, batch in self._batches(loader):
            self.profiler.before(step)
            with self.placing:
                state, metrics = self.step(state, batch, step)
            done = step + 1
            if pending is not None:
                self._report(*pending, state)
            pending = (step, metrics)
            self.agreement.after(done)
            due = [hook for hook in self.hooks if hook.is_due(done, is_last=done == last)]
            if due or self.agreement.stops or self.profiler.is_last(step):
                self._report(*pending, state)
                pending = None
                if self.profiler.is_last(step):
                    self.profiler.stop()
                self._act(due, state, done)
            if self.agreement.stops:
                break
        if pending is not None:
            self._report(*pending, state)
        self.profiler.stop()
        return state, done

    def _batches(self, loader: Loader) -> Iterator[tuple[int, Batch]]:
        """The batches, and how long each was waited for."""
        batches = iter(loader)
        while True:
            began = time.monotonic()
            ready = next(batches, None)
            self.throughput.loaded(time.monotonic() - began)
            if ready is None:
                return
            yield ready

    def _act(self, due: Sequence[Hook], state: TrainState, step: int) -> None:
        with self._hook_time():
            for hook in due:
                hook(state, step)
                self.watchdog.alive(step)

    @contextmanager
    def _hook_time(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.throughput.hooked(time.monotonic() - began)

    def _report(self, step: int, metrics: StepMetrics, state: TrainState) -> None:
        """Waits until a step has ended, and tells its numbers."""
        trainer = self.setup.config.trainer
        loss, grad_norm = float(metrics.loss), float(metrics.grad_norm)
        self.watchdog.alive(step)
        rows = self.setup.data.stream.schedule.size(step)
        logged = {
            "train/loss": loss,
            "optim/grad_norm": grad_norm,
            "optim/learning_rate": float(metrics.learning_rate),
            **self.throughput.stepped(rows, rows * self.setup.shape.length),
            **self._mixture(step),
        }
        if self.setup.config.z_loss_weight:
            logged["train/cross_entropy"] = float(metrics.cross_entropy)
        watched = trainer.watch.metrics_of(metrics.watched) if trainer.watch.is_due(step) else {}
        self.tracker.log({**logged, **watched}, step)
        self.loss = loss
        self.on_step(StepReport(step, loss, logged))
        check_finite(
            step,
            loss,
            grad_norm,
            metrics.squares,
            state.model,
            stops_at_nan=trainer.crash_on_nan,
            stops_at_inf=trainer.crash_on_inf,
        )

    def _mixture(self, step: int) -> dict[str, float]:
        """Which share of the step's rows came from each dataset, where there are several."""
        stream = self.setup.data.stream
        if len(stream.datasets) < 2:
            return {}
        origin = stream.origin(step).dataset
        return {f"mixture/{one.name}": float((origin == number).mean()) for number, one in enumerate(stream.datasets)}
