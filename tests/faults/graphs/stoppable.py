"""Two sides that wait for the test, one of them in a worker, and a step that needs both."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.cluster import map_shards
from ponente.executor import Estimate, ExecutorStep, Retries, executor_main, step_type, this_output_path


@dataclass(frozen=True, kw_only=True)
class SideConfig:
    name: str
    parents: tuple[str, ...] = ()
    output_path: str = this_output_path("done.txt")

    def finish(self) -> None:
        Path(self.output_path).write_text(f"{self.name}\n")


def wait_in_the_step(config: SideConfig) -> None:
    traces.leave(f"began-{config.name}")
    traces.await_one("go")
    config.finish()


def wait_in_a_worker(config: SideConfig) -> None:
    map_shards(wait_at_the_third, [1, 2, 3, 4], name="shards", workers=1)
    config.finish()


def wait_at_the_third(shard: int) -> int:
    traces.leave(f"shard-{shard}")
    if shard == 3:
        traces.leave("began-worker")
        traces.await_one("go")
    return shard


def stop_the_planner(config: SideConfig) -> Estimate:
    """Plays a signal that comes while the driver makes its plan, if the test laid a bomb."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if traces.take(f"bomb-{number.name}"):
            os.kill(os.getpid(), number)
    return Estimate()


@step_type(estimate=stop_the_planner)
def join(config: SideConfig) -> None:
    traces.leave("joined")
    config.finish()


plain = ExecutorStep(name="stoppable/plain", fn=wait_in_the_step, config=SideConfig(name="plain"))
mapped = ExecutorStep(name="stoppable/mapped", fn=wait_in_a_worker, config=SideConfig(name="mapped"))
joined = ExecutorStep(name="stoppable/joined", fn=join, config=SideConfig(name="joined", parents=(plain, mapped)))
fragile = ExecutorStep(
    name="stoppable/fragile",
    fn=wait_in_the_step,
    config=SideConfig(name="fragile"),
    retries=Retries(errors=0, preemptions=0),
)

if __name__ == "__main__":
    executor_main(steps=[joined, fragile], description=__doc__)
