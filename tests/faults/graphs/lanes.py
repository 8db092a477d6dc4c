"""Eight lanes of four steps, each with a sharded map, and one step that joins them: 33 steps for a cluster."""

import hashlib
import json
import time
from dataclasses import dataclass

import traces
from diamond import read, write

from ponente.cluster import CpuOnly, map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path
from ponente.store.expansion import expand

LANES, SHARDS = 8, 6


@dataclass(frozen=True, kw_only=True)
class SeedConfig:
    lane: int
    output_path: str = this_output_path("seed.txt")


def write_seed(config: SeedConfig) -> None:
    write(config.output_path, str(config.lane).encode())


@dataclass(frozen=True, kw_only=True)
class LaneConfig:
    before: str
    output_path: str = this_output_path("lane.txt")


def spread(config: LaneConfig) -> None:
    """A sharded map that asks for more workers than the step has cores."""
    seed = read(config.before).decode()
    shards = [f"{seed}.{number}" for number in range(SHARDS)]
    result = map_shards(work, shards, name="parts", suffix=".txt", workers=3)
    write(config.output_path, json.dumps(result.values).encode())


def work(shard: str, output_path: str) -> str:
    traces.leave(f"shard-{shard}")
    time.sleep(0.05)
    digest = hashlib.sha256(shard.encode()).hexdigest()
    write(output_path, digest.encode())
    return digest[:8]


def fold(config: LaneConfig) -> None:
    found = [read(path) for path in expand(f"{config.before}/*.txt")]
    assert len(found) == SHARDS, found
    time.sleep(0.1)
    write(config.output_path, hashlib.sha256(b"".join(found)).hexdigest().encode())


def polish(config: LaneConfig) -> None:
    write(config.output_path, read(config.before)[::-1])


@dataclass(frozen=True, kw_only=True)
class JoinConfig:
    lanes: list[str]
    output_path: str = this_output_path("all.txt")


def join(config: JoinConfig) -> None:
    write(config.output_path, b"\n".join(map(read, config.lanes)))


STEPS: list[ExecutorStep] = []
ENDS = []
for _lane in range(LANES):
    _seed = ExecutorStep(name=f"lanes/{_lane}/seed", fn=write_seed, config=SeedConfig(lane=_lane))
    _spread = ExecutorStep(
        name=f"lanes/{_lane}/spread",
        fn=spread,
        config=LaneConfig(before=_seed / "seed.txt"),
        resources=CpuOnly(num_cpus=1),
    )
    _fold = ExecutorStep(name=f"lanes/{_lane}/fold", fn=fold, config=LaneConfig(before=_spread / "parts"))
    _polish = ExecutorStep(name=f"lanes/{_lane}/polish", fn=polish, config=LaneConfig(before=_fold / "lane.txt"))
    STEPS += [_seed, _spread, _fold, _polish]
    ENDS.append(_polish)
joined = ExecutorStep(name="lanes/all", fn=join, config=JoinConfig(lanes=[end / "lane.txt" for end in ENDS]))
STEPS.append(joined)

if __name__ == "__main__":
    executor_main(steps=[joined], description=__doc__)
