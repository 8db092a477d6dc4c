"""A diamond whose sides keep state: a sharded map, several files at once, a loop with checkpoints."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from ponente.cluster import CpuOnly, map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path, this_state_path
from ponente.store.expansion import expand
from ponente.store.volume import publishing

PARTS = 12
ROUNDS = 10


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    parts: int
    output_path: str = this_output_path()


def write_source(config: SourceConfig) -> None:
    """Several files, so that half of them would be noticed."""
    for part in range(config.parts):
        text = "".join(f"{part} {line} {digest(f'{part}.{line}'.encode())}\n" for line in range(40 * (part + 1)))
        Path(config.output_path, f"{part:02d}.txt").write_text(text)
        time.sleep(0.002)


@dataclass(frozen=True, kw_only=True)
class SideConfig:
    source: str
    output_path: str = this_output_path()
    state_path: str = this_state_path()


def map_digests(config: SideConfig) -> None:
    """A sharded map; its children read it as `digests`."""
    result = map_shards(digest_part, expand(f"{config.source}/*.txt"), name="digests", suffix=".txt", workers=2)
    Path(config.output_path, "lines.json").write_text(json.dumps(result.values))


def digest_part(shard: str, output_path: str) -> int:
    lines = Path(shard).read_bytes().splitlines()
    with open(output_path, "w") as file:
        for line in lines:
            file.write(digest(line) + "\n")
        file.flush()
        time.sleep(0.005)
        file.write(f"{len(lines)} lines\n")
    return len(lines)


def reverse_all(config: SideConfig) -> None:
    """An output of many files in folders."""
    for path in map(Path, expand(f"{config.source}/*.txt")):
        folder = Path(config.output_path, path.stem)
        folder.mkdir()
        (folder / "reversed.txt").write_bytes(path.read_bytes()[::-1])
        time.sleep(0.002)


def train(config: SideConfig) -> None:
    """A loop that goes on from its last checkpoint, and checks that what it finds is what it wrote."""
    total, start = "", 0
    for number in range(ROUNDS, 0, -1):
        checkpoint = Path(config.state_path, f"step-{number}.json")
        if checkpoint.exists():
            stored = json.loads(checkpoint.read_text())
            total, start = stored["total"], stored["step"]
            break
    data = b"".join(Path(path).read_bytes() for path in expand(f"{config.source}/*.txt"))
    for number in range(start + 1, ROUNDS + 1):
        total = digest(total.encode() + data)
        time.sleep(0.01)
        with publishing(f"{config.state_path}/step-{number}.json") as private:
            Path(private).write_text(json.dumps({"step": number, "total": total}))
    Path(config.output_path, "model.txt").write_text(total)


@dataclass(frozen=True, kw_only=True)
class JoinConfig:
    digests: str
    lines: str
    reversed: str
    model: str
    output_path: str = this_output_path("joined.json")


def join_all(config: JoinConfig) -> None:
    found = {
        "digests": [digest(Path(path).read_bytes()) for path in expand(f"{config.digests}/*.txt")],
        "lines": json.loads(Path(config.lines).read_text()),
        "reversed": [digest(Path(path).read_bytes()) for path in expand(f"{config.reversed}/*/reversed.txt")],
        "model": Path(config.model).read_text(),
    }
    Path(config.output_path).write_text(json.dumps(found, indent=1))


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
