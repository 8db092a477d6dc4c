"""A quick step, a step that waits until it is let go, and one that needs it; a fourth may fail."""

import os
import time
from pathlib import Path
from typing import Any

from ponente.cluster import report_progress
from ponente.executor import ExecutorStep, Retries, executor_main

GATE = os.environ.get("GATE", "gate")  # the folder in which a step says that it waits, and is told to go on
PATIENCE_SECONDS = 60.0


def pass_by(config: Any) -> None:
    """Does nothing."""


def wait(config: Any) -> None:
    """Says that it is here, and waits to be let go."""
    gate = Path(os.environ["GATE"])
    report_progress(2, 4, unit="gates")
    (gate / "waiting").touch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (gate / "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {gate}/go")
        time.sleep(0.02)
    if (gate / "fail").exists():
        raise RuntimeError("told to fail")


quick = ExecutorStep(name="quick", fn=pass_by)
waiting = ExecutorStep(name="waiting", fn=wait, config=[quick], retries=Retries(errors=0))
last = ExecutorStep(name="last", fn=pass_by, config=[waiting])

if __name__ == "__main__":
    executor_main(steps=[last])
