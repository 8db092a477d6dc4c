"""One process at a time in a folder: held while a block runs, and let go when its process ends, however it ends."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ponente.config.errors import RefusedError
from ponente.store.paths import join, protocol_of
from ponente.store.volume import volume_of

LOCK = ".lock"

logger = logging.getLogger(__name__)


@contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Waits until no other process of this machine holds `folder`, then holds it inside the block.

    On places without locks nothing is held: what is written there must bear two writers.
    """
    if protocol_of(folder) != "file":
        yield
        return
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise RefusedError(f"found the file {folder} where a folder was needed; remove it, or name another folder")
    volume_of(folder).make_folder(folder)
    descriptor = os.open(join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process is at work in %s; waiting for it", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
