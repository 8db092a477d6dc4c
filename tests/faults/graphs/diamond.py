"""A diamond whose sides keep state: a sharded map, several files at once, a loop with checkpoints; on any volume."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import fsspec

from ponente.cluster import CpuOnly, map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path, this_state_path
from ponente.store.expansion import expand
from ponente.store.volume import publishing, volume_of

PARTS = 12
ROUNDS = 10


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(place: str) -> bytes:
    return volume_of(place).read(place)


def write(place: str, data: bytes) -> None:
    """Not in one stroke: a kill may leave a half."""
    if "://" in place:
        with fsspec.open(place, "wb") as file:
            file.write(data)
    else:
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_bytes(data)


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    parts: int
    output_path: str = this_output_path()


def write_source(config: SourceConfig) -> None:
    """Several files, so that half of them would be noticed."""
    for part in range(config.parts):
        text = "".join(f"{part} {line} {digest(f'{part}.{line}'.encode())}\n" for line in range(40 * (part + 1)))
        write(f"{config.output_path}/{part:02d}.txt", text.encode())
        time.sleep(0.002)


@dataclass(frozen=True, kw_only=True)
class SideConfig:
    source: str
    output_path: str = this_output_path()
    state_path: str = this_state_path()


def map_digests(config: SideConfig) -> None:
    """A sharded map; its children read it as `digests`."""
    result = map_shards(digest_part, expand(f"{config.source}/*.txt"), name="digests", suffix=".txt", workers=2)
    write(f"{config.output_path}/lines.json", json.dumps(result.values).encode())


def digest_part(shard: str, output_path: str) -> int:
    lines = read(shard).splitlines()
    with open(output_path, "w") as file:
        for line in lines:
            file.write(digest(line) + "\n")
        file.flush()
        time.sleep(0.005)
        file.write(f"{len(lines)} lines\n")
    return len(lines)


def reverse_all(config: SideConfig) -> None:
    """An output of many files in folders."""
    for path in expand(f"{config.source}/*.txt"):
        write(f"{config.output_path}/{Path(path).stem}/reversed.txt", read(path)[::-1])
        time.sleep(0.002)


def train(config: SideConfig) -> None:
    """A loop that goes on from its last checkpoint, and checks that what it finds is what it wrote."""
    total, start = "", 0
    for number in range(ROUNDS, 0, -1):
        checkpoint = f"{config.state_path}/step-{number}.json"
        if volume_of(checkpoint).exists(checkpoint):
            stored = json.loads(read(checkpoint))
            total, start = stored["total"], stored["step"]
            break
    data = b"".join(map(read, expand(f"{config.source}/*.txt")))
    for number in range(start + 1, ROUNDS + 1):
        total = digest(total.encode() + data)
        time.sleep(0.01)
        with publishing(f"{config.state_path}/step-{number}.json") as private:
            Path(private).write_text(json.dumps({"step": number, "total": total}))
    write(f"{config.output_path}/model.txt", total.encode())


@dataclass(frozen=True, kw_only=True)
class JoinConfig:
    digests: str
    lines: str
    reversed: str
    model: str
    output_path: str = this_output_path("joined.json")


def join_all(config: JoinConfig) -> None:
    found = {
        "digests": [digest(read(path)) for path in expand(f"{config.digests}/*.txt")],
        "lines": json.loads(read(config.lines)),
        "reversed": [digest(read(path)) for path in expand(f"{config.reversed}/*/reversed.txt")],
        "model": read(config.model).decode(),
    }
    write(config.output_path, json.dumps(found, indent=1).encode())


source = ExecutorStep(name="diamond/source", fn=write_source, config=SourceConfig(parts=PARTS))
digests = ExecutorStep(
    name="diamond/digests", fn=map_digests, config=SideConfig(source=source), resources=CpuOnly(num_cpus=1)
)
reversed_parts = ExecutorStep(name="diamond/reversed", fn=reverse_all, config=SideConfig(source=source))
model = ExecutorStep(name="diamond/model", fn=train, config=SideConfig(source=source))
joined = ExecutorStep(
    name="diamond/joined",
    fn=join_all,
    config=JoinConfig(
        digests=digests / "digests",
        lines=digests / "lines.json",
        reversed=reversed_parts,
        model=model / "model.txt",
    ),
)

STEPS = [source, digests, reversed_parts, model, joined]

if __name__ == "__main__":
    executor_main(steps=[joined], description=__doc__)
