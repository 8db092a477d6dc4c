"""A map whose shards fail on every worker that is not the step's own, and a step's variable that all of them see."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.cluster import CpuOnly, Environment, map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path

SHARDS = 30


@dataclass(frozen=True, kw_only=True)
class FaintConfig:
    output_path: str = this_output_path("found.json")


def spread(config: FaintConfig) -> None:
    found = map_shards(faint, list(range(SHARDS)), max_quarantined=SHARDS)
    errors = [one.error for one in found.quarantined]
    Path(config.output_path).write_text(json.dumps({"values": found.values, "errors": errors}))


def faint(shard: int) -> str:
    word = os.environ["WIND"]
    if b"ray::" in Path("/proc/self/cmdline").read_bytes():
        traces.leave("elsewhere")
        raise ValueError(f"not with {word} at my back")
    traces.await_one("elsewhere")  # which takes a while to come
    time.sleep(0.2)
    return word


fainting = ExecutorStep(
    name="faint",
    fn=spread,
    config=FaintConfig(),
    resources=CpuOnly(num_cpus=1),
    env=Environment(variables={"WIND": "levante"}),
)

if __name__ == "__main__":
    executor_main(steps=[fainting], description=__doc__)
