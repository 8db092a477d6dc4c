"""A map over a thousand shards, whose step, worker or driver is killed at shard 700 if the test laid a bomb."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.cluster import map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path

SHARDS = 1000
WORKERS = 2
BOMB_AT = 700


@dataclass(frozen=True, kw_only=True)
class MapConfig:
    shards: int
    output_path: str = this_output_path("squares.json")


def square_all(config: MapConfig) -> None:
    result = map_shards(square, list(range(config.shards)), name="squares", suffix=".txt", workers=WORKERS)
    Path(config.output_path).write_text(json.dumps(result.values))


def square(shard: int, output_path: str) -> int:
    traces.leave(f"shard-{shard:04d}")
    if shard == BOMB_AT:
        explode()
    Path(output_path).write_text(f"{shard * shard}\n")
    return shard * shard


def explode() -> None:
    """Kills what the bomb is meant for: the step's process, the driver (by the test), or this worker."""
    if traces.take("bomb-step"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # a worker ends with its step
        traces.leave("survived")
    if traces.take("bomb-driver"):
        traces.leave("waits-for-the-driver-to-be-killed")
        time.sleep(60)
        traces.leave("survived")
    if traces.take("bomb-worker"):
        os.kill(os.getpid(), signal.SIGKILL)


squares = ExecutorStep(name="thousand/squares", fn=square_all, config=MapConfig(shards=SHARDS))

if __name__ == "__main__":
    executor_main(steps=[squares], description=__doc__)
