"""The folder of a run's checkpoints: which there are, which is the newest, and who may write there.

In: `<base>/<run_id>`. Out: the whole checkpoints by step; private leftovers, foreign folders and records that cannot be
read are none. A checkpoint is taken out of sight in one stroke before its files go.
"""

import fcntl
import logging
import os

from ponente.config.errors import RefusedError
from ponente.store.checkpoint.record import CheckpointMetadata, find_metadata, step_of, step_path
from ponente.store.formats import FormatError
from ponente.store.lock import LOCK
from ponente.store.paths import absolute, join, protocol_of
from ponente.store.volume import volume_of

logger = logging.getLogger(__name__)


def whole_checkpoints(folder: str) -> dict[int, CheckpointMetadata]:
    """The checkpoints in a folder, by step, in order."""
    found = {step: metadata for step in _steps(folder) if (metadata := _whole(folder, step)) is not None}
    return dict(sorted(found.items()))


def newest(folder: str) -> str | None:
    """The path of the whole checkpoint with the highest step in a folder; None where there is none."""
    for step in sorted(_steps(folder), reverse=True):
        if _whole(folder, step) is not None:
            return step_path(folder, step)
    return None


def runs_in(folder: str) -> list[str]:
    """The names in a folder of those that hold whole checkpoints, as those of runs do."""
    folder = absolute(folder)
    return sorted(name for name in volume_of(folder).names(folder) if newest(join(folder, name)) is not None)


def _steps(folder: str) -> list[int]:
    folder = absolute(folder)
    return [step for name in volume_of(folder).names(folder) if (step := step_of(name)) is not None]


def _whole(folder: str, step: int) -> CheckpointMetadata | None:
    path = step_path(folder, step)
    try:
        metadata = find_metadata(path)
    except FormatError as error:
        logger.warning("%s is passed over: %s", path, error)
        return None
    if metadata is not None and metadata.step != step:
        logger.warning("%s is passed over: its record says step %d", path, metadata.step)
        return None
    return metadata


def remove(path: str) -> None:
    """Removes a checkpoint; a kill in the middle leaves it whole, or a private leftover."""
    path = absolute(path)
    volume_of(path).remove(path)


def remove_leftovers(folder: str) -> None:
    """Removes what killed saves left in a folder; only for who holds it."""
    folder = absolute(folder)
    volume = volume_of(folder)
    for place in volume.leftovers(folder):
        logger.info("removing %s, left by a save that was interrupted", place)
        volume.remove(place)


class FolderHold:
    """The right to write into a folder: one process of a machine has it, until it is released or the process ends."""

    def __init__(self, folder: str) -> None:
        self.folder = absolute(folder)
        self._descriptor: int | None = None
        if protocol_of(self.folder) != "file":
            return
        volume_of(self.folder).make_folder(self.folder)
        descriptor = os.open(join(self.folder, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 100).decode("ascii", "replace") or "of an unknown number"
            os.close(descriptor)
            raise RefusedError(
                f"found {self.folder} in use by the process {holder}, which writes checkpoints there; needed a folder "
                "of this run's own. Wait until it ends, or stop it, or set trainer.id to another name."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Lets others in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()
