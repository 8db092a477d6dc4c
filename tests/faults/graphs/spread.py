"""One step with a map of many shards, which takes on workers wherever a cluster has a core.

The step's own worker waits in its first shard until somebody leaves the trace ENOUGH: however long Ray takes to start
others, they find shards.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.cluster import CpuOnly, map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path

SHARDS = 40
ENOUGH = "enough"


@dataclass(frozen=True, kw_only=True)
class SpreadConfig:
    output_path: str = this_output_path("squares.json")


def spread(config: SpreadConfig) -> None:
    result = map_shards(square, list(range(SHARDS)), name="squares", suffix=".txt", timeout_seconds=150)
    Path(config.output_path).write_text(json.dumps(result.values))


def square(shard: int, output_path: str) -> int:
    traces.leave(f"shard-{shard:02d}")
    if b"ray::" in Path("/proc/self/cmdline").read_bytes():
        traces.leave("elsewhere")
    else:
        traces.await_one(ENOUGH)
    time.sleep(0.2)
    Path(output_path).write_text(str(shard))
    return shard**2


squares = ExecutorStep(name="spread/squares", fn=spread, config=SpreadConfig(), resources=CpuOnly(num_cpus=1))

if __name__ == "__main__":
    executor_main(steps=[squares], description=__doc__)
