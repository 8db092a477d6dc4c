"""When a run saves its state, where, and which checkpoints stay.

In: the state at the steps for which `due` says so. Out: `<base_path>/<run_id>/step-N`. Checkpoints of chosen steps are
permanent; those saved for the time that has passed are temporary, and go when newer ones are whole. One process at a
time writes for a run; what a save that failed in the background has to say is raised by the next call.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import jax

from ponente.cluster.gang import Alone, Gang, from_first, is_first
from ponente.config import RefusedError, execution, observation
from ponente.config.durations import seconds_of
from ponente.store import checkpoint
from ponente.store.paths import absolute, join

Due = Literal["temporary", "permanent"]
_FOLDER = "checkpoints"
_INTERVAL_KEY = "trainer.checkpointer.save_interval"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Permanent checkpoints: one every so many steps, up to and with the step `until`; None: to the end."""

    every: int = observation()
    until: int | None = observation(None)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise RefusedError(
                f"found keep with every: {self.every}; needed a number of steps, 1 or more. Change it, or remove it."
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointerConfig:
    """Checkpoints of a run."""

    base_path: str | None = execution("checkpoints/")  # None: `checkpoints` in trainer.log_dir
    temporary_base_path: str | None = execution(None)  # None: beside the permanent ones
    append_run_id_to_base_path: bool = execution(True)
    save_interval: str | float | None = observation("15m")  # between temporary ones; None: there are none
    keep: tuple[KeepConfig, ...] = observation((KeepConfig(every=10_000),))
    delete_old_temp_checkpoints: bool = observation(True)  # those of earlier attempts too
    keep_last_temporary_checkpoints: int = observation(1)

    def __post_init__(self) -> None:
        seconds_of(self.save_interval, _INTERVAL_KEY)
        if self.keep_last_temporary_checkpoints < 1:
            raise RefusedError(
                f"found keep_last_temporary_checkpoints: {self.keep_last_temporary_checkpoints}; needed 1 or more, for "
                "a run resumes from them. Set it to 1, or save_interval to null for no temporary ones."
            )
        ends = [math.inf if stage.until is None else stage.until for stage in self.keep]
        if ends != sorted(set(ends)):
            shown = [{"every": stage.every, "until": stage.until} for stage in self.keep]
            raise RefusedError(
                f"found keep: {shown}, whose stages are not in order; needed each until above the one before, and at "
                "most the last without. Sort them by until, and give each but the last its own."
            )

    def folder(self, run_id: str) -> str:
        """Where the permanent checkpoints of a run lie."""
        return self._folder(self.base_path, run_id)

    def temporary_folder(self, run_id: str) -> str:
        """Where the temporary ones lie."""
        return self._folder(self.temporary_base_path or self.base_path, run_id)

    def below(self, log_dir: str) -> "CheckpointerConfig":
        """The same; without a `base_path`, in the folder of logs."""
        return self if self.base_path is not None else replace(self, base_path=join(absolute(log_dir), _FOLDER))

    def _folder(self, base: str | None, run_id: str) -> str:
        assert base is not None, "TrainerConfig.checkpoints says where checkpoints lie"
        return join(absolute(base), run_id) if self.append_run_id_to_base_path else absolute(base)

    def newest(self, run_id: str) -> str | None:
        """The checkpoint from which a run goes on: the newest whole one of either kind; None for a new run."""
        found = [path for path in map(checkpoint.newest, self.folders(run_id)) if path is not None]
        return max(found, key=lambda path: checkpoint.read_metadata(path).step, default=None)

    def folders(self, run_id: str) -> list[str]:
        """Both, or the one that is for both."""
        return list(dict.fromkeys([self.folder(run_id), self.temporary_folder(run_id)]))

    def is_permanent(self, step: int) -> bool:
        """Whether a step's checkpoint stays: by the first stage that has not ended before it."""
        stage = next((one for one in self.keep if one.until is None or step <= one.until), None)
        return stage is not None and step % stage.every == 0


class Checkpointer:
    """Saves the state of one run; holds its folders until `finish`, or until the `with` block ends.

    Args:
        first_step: the step that training begins at; no checkpoint of a later one may be there.
        last_step: the step that it ends with, whose checkpoint is permanent.
        gang: the run's processes, each of which has one of these; the first holds the folders and removes what is old.
        clock: seconds, for the time between temporary checkpoints.
    """

    def __init__(
        self,
        config: CheckpointerConfig,
        run_id: str,
        first_step: int,
        *,
        last_step: int | None = None,
        gang: Gang | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gang = gang or Alone()
        self._config, self._clock = config, clock
        self._first_step, self._last_step = first_step, last_step
        self._interval = seconds_of(config.save_interval, _INTERVAL_KEY) or math.inf
        self._folder, self._temporary_folder = config.folder(run_id), config.temporary_folder(run_id)
        self._folders = config.folders(run_id)
        self._holds: list[checkpoint.FolderHold] = []
        self._staging = checkpoint.Staging()
        self._pending: checkpoint.PendingSave | None = None
        self._last_save = clock()
        self._saved_step: int | None = None
        try:
            for folder in self._folders if is_first(self._gang) else ():
                self._holds.append(checkpoint.FolderHold(folder))
                checkpoint.remove_leftovers(folder)
            self._gang.gather("folders of checkpoints")
            self._earlier = self._whole()
            self._check_history()
        except BaseException:
            self._release()
            raise

    def _whole(self) -> dict[str, checkpoint.CheckpointMetadata]:
        """All checkpoints that are there, by path."""
        return {
            checkpoint.step_path(folder, step): metadata
            for folder in self._folders
            for step, metadata in checkpoint.whole_checkpoints(folder).items()
        }

    def _check_history(self) -> None:
        """Refuses a run that would write its history beside a later one, from which the next attempt would go on."""
        later = [path for path, metadata in self._earlier.items() if metadata.step > self._first_step]
        if later:
            raise RefusedError(
                f"found {later[-1]}, a checkpoint of a later step than {self._first_step}, at which this run begins; "
                "needed a folder with this run's own past only. Set trainer.id to a new name, or move the later "
                "checkpoints away."
            )

    def prepare(self, arrays: Mapping[str, jax.Array]) -> None:
        """Takes the host memory of the first save in the background, where devices have memory of their own."""
        if jax.default_backend() != "cpu":
            self._staging.prepare(arrays)

    def due(self, step: int, *, is_time: bool | None = None) -> Due | None:
        """Whether the state after `step` steps is to be saved, and for how long; raises what failed before.

        Args:
            is_time: for a temporary one, as processes agree on it; None: as this process wants it.
        """
        self._raise_failure()
        if step == self._saved_step or (step <= self._first_step and step != self._last_step):
            return None
        if self._is_permanent(step):
            return "permanent"
        return "temporary" if (self.wants_temporary() if is_time is None else is_time) else None

    def wants_temporary(self) -> bool:
        """Whether it is time for a temporary checkpoint, and this process is free to write it."""
        is_free = self._pending is None or self._pending.is_done()  # a slow disk makes them rarer, not training slower
        return is_free and self.seconds_to_next() <= 0

    def _is_permanent(self, step: int) -> bool:
        return step == self._last_step or self._config.is_permanent(step)

    def seconds_to_next(self) -> float:
        """How long until the next temporary checkpoint is due; infinite where there are none."""
        return max(0.0, self._last_save + self._interval - self._clock())

    def save(self, step: int, arrays: Mapping[str, jax.Array], metadata: Mapping[str, Any]) -> None:
        """Saves the state after `step` steps, due or not; when it returns, the arrays may be donated.

        Waits for a save that is still under way. A checkpoint of this step that is there already stays as it is, and
        becomes permanent if it is to be.
        """
        self._finish_pending()
        is_temporary = not self._is_permanent(step)
        path = checkpoint.step_path(self._temporary_folder if is_temporary else self._folder, step)
        self._last_save, self._saved_step = self._clock(), step
        if from_first(self._gang, f"whether {path} is there", path in self._whole()):
            logger.info("%s is there already", path)
            if not is_temporary and is_first(self._gang):
                checkpoint.make_permanent(path)
            return
        began = time.monotonic()
        self._pending = checkpoint.begin_save(
            path,
            arrays,
            metadata,
            is_temporary=is_temporary,
            staging=self._staging,
            when_whole=(lambda: self._remove_old(path)) if is_first(self._gang) else None,
            writers=self._gang,
        )
        held = time.monotonic() - began
        logger.info("step %s: training stood for %.2f s, while its state was copied to the host", f"{step:,}", held)

    def _remove_old(self, saved: str) -> None:
        """Removes the temporary checkpoints after which enough others are whole."""
        logger.info("saved %s", saved)
        found = self._whole()
        steps = sorted({metadata.step for metadata in found.values()}, reverse=True)
        kept = steps[: self._config.keep_last_temporary_checkpoints]
        for path, metadata in found.items():
            is_spared = path in self._earlier and not self._config.delete_old_temp_checkpoints
            if metadata.is_temporary and metadata.step not in kept and not is_spared:
                checkpoint.remove(path)

    def _raise_failure(self) -> None:
        if self._pending is not None and self._pending.is_done():
            self._finish_pending()

    def _finish_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def finish(self) -> None:
        """Waits until all is saved, raises what failed, and lets the folders go."""
        try:
            self._finish_pending()
        finally:
            self._release()

    def _release(self) -> None:
        while self._holds:
            self._holds.pop().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        try:
            self.finish()
        except Exception:  # what ended the block is what is to be seen
            logger.exception("the last checkpoint was not saved")
