"""The main of a task's own process: takes a job from standard input, runs it, ends with its driver.

The driver keeps its end of standard input open for as long as it lives; when it closes, this whole process group is
killed, workers and helper programs included.
"""

import json
import logging
import os
import signal
import sys
import threading
from types import FrameType

from ponente.cluster.launch import LOG_FORMAT, RESUME_EXIT, load_entry
from ponente.cluster.process import StoppedError


def main() -> int:
    """Runs the job that comes on standard input; returns its exit code."""
    driver = os.dup(0)
    message = bytearray()
    while not message.endswith(b"\n"):
        chunk = os.read(driver, 1 << 20)
        if not chunk:
            return RESUME_EXIT
        message += chunk
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with, args=(driver,), name="ponente-driver-watch", daemon=True).start()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    task = json.loads(message)
    sys.path[:] = task["path"]
    try:
        return load_entry(task["entry"])(task["job"])
    except StoppedError:
        return RESUME_EXIT


def _end_with(driver: int) -> None:
    while os.read(driver, 1 << 10):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StoppedError(f"asked to end by {signal.Signals(signal_number).name}")


if __name__ == "__main__":
    sys.exit(main())
