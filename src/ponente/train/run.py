"""A training run from its config to its last checkpoint; the same call starts a run and goes on with it.

In: a config, and what weights are evaluated by. Out: checkpoints, metrics, a record, and a `TrainResult`.
"""

import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from ponente.batches.loader import Loader
from ponente.cluster.context import report_progress
from ponente.cluster.gang import Gang, from_first, is_first
from ponente.config.errors import RefusedError
from ponente.config.snapshot import plain_value
from ponente.models.parameters import count
from ponente.store.checkpoint import read_metadata
from ponente.store.paths import absolute, join
from ponente.store.redaction import Redactor
from ponente.train.agreement import Agreement
from ponente.train.beginning import Resumption, abstract_state, begin, find_resumption, source_of, tell_other_model
from ponente.train.changes import changed_fields
from ponente.train.checkpointer import Checkpointer
from ponente.train.compiling import step_of
from ponente.train.config import TrainConfig
from ponente.train.devices import check_training_devices, describe_devices, prepare_jax
from ponente.train.distributed import joined
from ponente.train.export import ExportHook, export_hook
from ponente.train.fitting import check_state
from ponente.train.loop import Every, Hook, Loop, StepReport
from ponente.train.mesh import batch_sharding
from ponente.train.profiling import Profiler
from ponente.train.run_record import write_run_record
from ponente.train.setup import Setup, set_up
from ponente.train.show import NoShow, Progress, Show, logging_to, showing
from ponente.train.signals import Preempted, ending_at_sigterm, noting_signals
from ponente.train.state import TrainState, named_arrays
from ponente.train.throughput import Throughput, peak_flops
from ponente.train.tokenizer_copy import keep_tokenizer
from ponente.train.trackers import RunInfo, Tracker, begin_trackers, check_trackers
from ponente.train.trainer import TrainerConfig
from ponente.train.watchdog import Watchdog

Evaluate = Callable[[Any], dict[str, float]]  # weights → metrics
MakeEvaluate = Callable[[Setup], Evaluate | None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run left behind."""

    run_id: str
    steps: int
    loss: float | None  # of the last step; None where there was nothing left to do
    metrics: dict[str, float]  # of the last evaluation
    checkpoint: str
    folder: str  # of metrics and record
    exported: str | None


def train(config: TrainConfig, *, make_evaluate: MakeEvaluate | None = None) -> TrainResult:
    """Trains until the last step of the config; raises `Preempted` (exit code 75) when it is asked to stop before.

    Args:
        make_evaluate: makes of the setup what is called between steps with the weights; None evaluates nothing.

    Example: `train(load_train_config("config/shakespeare_cpu.yaml").config)`
    """
    config.check()
    check_trackers(config.trainer.tracker)
    prepare_jax(config.trainer)
    with joined(config.trainer.distributed.found(os.environ), _common(config)) as gang, ExitStack() as stack:
        run_id = from_first(gang, "the run's name", config.trainer.id or new_run_id())
        name = run_id if is_first(gang) else f"{run_id}.{gang.index}"
        stack.enter_context(logging_to(join(absolute(config.trainer.log_dir), f"{name}.log")))
        stack.enter_context(ending_at_sigterm())
        check_training_devices(config.trainer)
        _check_processes(gang)
        logger.info("run %s on %s", run_id, describe_devices(config.trainer.mesh.layout(jax.devices())))
        resumption = _resumption(config.trainer, run_id, gang)
        if resumption is None:
            source_of(config)  # refused if it must be, before anything is built
        recorded = None if resumption is None else resumption.metadata.about.get("orders")
        setup = set_up(config, recorded, gang)
        return _Life(setup, run_id, resumption, stack).train(make_evaluate)


def _check_processes(gang: Gang) -> None:
    """Refuses devices of other processes that are no part of this run, as on a slice of TPUs with several machines."""
    if (count := jax.process_count()) != gang.count:
        raise RefusedError(
            f"found devices of {count} processes, and {gang.count} that train together; needed all of them. Give "
            "trainer.distributed coordinator_address, num_processes and process_id on each machine."
        )


def _common(config: TrainConfig) -> dict[str, Any]:
    """What all processes of a run must be started with."""
    alike = replace(config.trainer.distributed, process_id=None, local_device_ids=None)
    whole: dict[str, Any] = plain_value(replace(config, trainer=replace(config.trainer, distributed=alike)))
    return whole


def _resumption(trainer: TrainerConfig, run_id: str, gang: Gang) -> Resumption | None:
    """Where the run goes on, as the first process finds it: others may see its folder a moment later."""
    found = find_resumption(trainer, run_id) if is_first(gang) else None
    path = from_first(gang, "the checkpoint to go on from", None if found is None else found.path)
    return found if found is not None or path is None else Resumption(path, read_metadata(path))


def new_run_id() -> str:
    """A name for a run that has none: when it began, and a few letters."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class _Life:
    """A run from where it stands to its end, in this process; what it opens is closed with the stack."""

    def __init__(self, setup: Setup, run_id: str, resumption: Resumption | None, stack: ExitStack) -> None:
        self._setup = setup
        self._gang = setup.gang
        self._run_id = run_id
        self._folder = join(absolute(setup.config.trainer.log_dir), run_id)
        self._resumption = resumption
        self._stack = stack
        self._metrics: dict[str, float] = {}
        redactor = Redactor.of_process(os.environ, sys.argv[1:])
        self._config: dict[str, Any] = redactor.value(plain_value(setup.config))  # type: ignore[assignment]

    def train(self, make_evaluate: MakeEvaluate | None) -> TrainResult:
        setup, trainer = self._setup, self._setup.config.trainer
        watchdog = Watchdog(trainer.progress_watchdog)  # a checkpoint may be slow to load, too
        self._stack.callback(watchdog.close)
        self._compare_config()
        first_step = 0 if self._resumption is None else self._resumption.step
        checkpointer = Checkpointer(
            trainer.checkpoints, self._run_id, first_step, last_step=setup.steps, gang=self._gang
        )
        self._stack.enter_context(checkpointer)
        if is_first(self._gang):
            keep_tokenizer(trainer.checkpoints.folder(self._run_id), setup)
        check_state(abstract_state(setup))
        setup, step = step_of(setup, first_step)
        state = begin(setup, self._resumption)
        first = int(state.step)
        self._check_that_steps_are_left(first)
        if first < setup.steps:
            checkpointer.prepare(named_arrays(state))
        tracker = self._track(first)
        show = showing(setup.steps, first) if is_first(self._gang) else NoShow()
        self._stack.callback(show.close)
        asked_to_stop = self._stack.enter_context(noting_signals())
        agreement = Agreement(gang=self._gang, asked_to_stop=asked_to_stop, wants_to_save=checkpointer.wants_temporary)
        save = _SaveHook(checkpointer, agreement, partial(self._save, checkpointer, tracker))
        export = export_hook(setup, self._run_id, lambda: self._metrics.get("eval/loss"))
        loop = Loop(
            setup=setup,
            step=step,
            hooks=[save, *self._evaluation(make_evaluate, tracker), *([] if export is None else [export])],
            tracker=tracker,
            throughput=self._throughput(first),
            watchdog=watchdog,
            profiler=Profiler(trainer.profiler, join(self._info(first).local_folder, "profile"), first),
            on_step=partial(self._show, show, checkpointer),
            agreement=agreement,
            placing=(placing := threading.Lock()),
        )
        with Loader(
            setup.data.stream,
            batch_sharding(setup.layout),
            start=first,
            stop=setup.steps,
            rows_together=setup.rows_together(),
            placing=placing,
            widest=setup.widest("training"),
        ) as loader:
            state, done = loop.run(state, loader, first)
        show.close()  # what follows is said behind the last step
        if done < setup.steps:
            self._save(checkpointer, tracker, state, done)
            checkpointer.finish()
            tracker.finish()
            logger.warning("stopped after %s of %s steps; the same command goes on", f"{done:,}", f"{setup.steps:,}")
            raise Preempted(done, is_agreed=True)
        checkpointer.finish()
        tracker.log_summary(self._metrics)
        tracker.finish()
        return self._result(loop, export)

    def _check_that_steps_are_left(self, first: int) -> None:
        """A finished run may be asked for again, but one that takes its state from another has something to do."""
        steps = self._setup.steps
        if first >= steps and self._setup.config.trainer.checkpoints.newest(self._run_id) is None:
            raise RefusedError(
                f"found a checkpoint of another run, after {first:,} steps, to begin at, and {steps:,} steps to train; "
                "needed a step before the last. Raise trainer.num_train_steps, or begin at step 0 with its weights "
                "(initialize_model_from_checkpoint_path)."
            )

    def _compare_config(self) -> None:
        """Says what differs from the config that the run was started with; another optimizer is refused."""
        if self._resumption is None:
            tell_other_model(self._setup)
            return
        stored = self._resumption.metadata.about.get("config", {})
        before, now = (str(one.get("optimizer", {}).get("type")) for one in (stored, self._config))
        if stored and before != now and not self._setup.config.trainer.allow_partial_checkpoint:
            raise RefusedError(
                f"found optimizer.type: {now} for a run that was trained with {before} so far; needed the same, for "
                "the state of one is not that of the other. Give the new run another trainer.id and its weights by "
                "initialize_model_from_checkpoint_path, or set trainer.allow_partial_checkpoint: true."
            )
        for change in changed_fields(self._setup.config, stored, self._config) if stored else []:
            logger.warning("this run was started with another config: %s", change)

    def _info(self, first: int) -> RunInfo:
        return RunInfo(run_id=self._run_id, folder=self._folder, config=self._config, first_step=first)

    def _track(self, first: int) -> Tracker:
        """Begins trackers, and notes this life in the run's record."""
        setup = self._setup
        tracker = begin_trackers(setup.config.trainer.tracker if is_first(self._gang) else None, self._info(first))
        self._stack.callback(tracker.finish)
        orders, parameters = setup.data.record(), count(setup.parameters)
        if is_first(self._gang):
            write_run_record(
                self._folder,
                self._config,
                run_id=self._run_id,
                first_step=first,
                devices=describe_devices(setup.layout),
                extra={"orders": orders, "parameters": parameters},
            )
        tracker.log_summary({"parameter_count": float(parameters), "num_train_steps": float(setup.steps)})
        tokens = setup.data.stream.schedule.first_example(setup.steps) * setup.shape.length
        logger.info("%s parameters, %s steps, %s tokens", f"{parameters:,}", f"{setup.steps:,}", f"{tokens:,}")
        return tracker

    def _evaluation(self, make_evaluate: MakeEvaluate | None, tracker: Tracker) -> list[Hook]:
        evaluate = None if make_evaluate is None else make_evaluate(self._setup)
        if evaluate is None:
            return []

        def act(state: TrainState, step: int) -> None:
            self._metrics = evaluate(state.evaluated)
            tracker.log(self._metrics, step)
            losses = [f"{name} {value:.4f}" for name, value in self._metrics.items() if name.endswith("/loss")]
            logger.info("after %s steps: %s", f"{step:,}", ", ".join(losses))

        return [Every(self._setup.config.trainer.steps_per_eval, act)]

    def _save(self, checkpointer: Checkpointer, tracker: Tracker, state: TrainState, step: int) -> None:
        tracker.flush()  # a run that resumes here does not tell earlier steps again
        about = {
            "run_id": self._run_id,
            "orders": self._setup.data.record(),
            "vocab_size": self._setup.vocab_size,
            "config": self._config,
        }
        checkpointer.save(step, named_arrays(state), about)

    def _throughput(self, first: int) -> Throughput:
        setup = self._setup
        return Throughput(
            flops_per_token=setup.model.flops_per_token(setup.shape.length, setup.vocab_size),
            peak=peak_flops(jax.devices()[0].device_kind, 1 if setup.layout is None else setup.layout.mesh.size),
            total_tokens=setup.data.stream.schedule.first_example(first) * setup.shape.length,
        )

    def _show(self, show: Show, checkpointer: Checkpointer, report: StepReport) -> None:
        report_progress(report.step + 1, self._setup.steps, unit="steps", note=f"loss {report.loss:.3f}")
        mfu = report.metrics.get("throughput/mfu")
        show.update(
            Progress(
                step=report.step + 1,
                steps=self._setup.steps,
                loss=report.loss,
                tokens_per_second=report.metrics["throughput/tokens_per_second"],
                mfu=None if mfu is None else mfu / 100,
                seconds_left=report.metrics["throughput/duration"] * (self._setup.steps - report.step - 1),
                next_checkpoint_seconds=checkpointer.seconds_to_next(),
            )
        )

    def _result(self, loop: Loop, export: ExportHook | None) -> TrainResult:
        checkpoint = self._setup.config.trainer.checkpoints.newest(self._run_id)
        assert checkpoint is not None
        return TrainResult(
            run_id=self._run_id,
            steps=self._setup.steps,
            loss=loop.loss,
            metrics=self._metrics,
            checkpoint=checkpoint,
            folder=self._folder,
            exported=None if export is None else export.place(self._setup.steps),
        )


@dataclass(frozen=True)
class _SaveHook:
    """Saves when the checkpointer says so."""

    checkpointer: Checkpointer
    agreement: Agreement
    save: Callable[[TrainState, int], None]

    def is_due(self, step: int, *, is_last: bool) -> bool:
        return self.checkpointer.due(step, is_time=self.agreement.saves) is not None

    def __call__(self, state: TrainState, step: int) -> None:
        self.save(state, step)
