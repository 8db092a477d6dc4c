"""A map that writes more than a small disk holds."""

import json
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.cluster import map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path

BLOCKS = 24
WORKERS = 2
BLOCK_BYTES = 1 << 17


@dataclass(frozen=True, kw_only=True)
class FillConfig:
    blocks: int
    output_path: str = this_output_path("sizes.json")


def fill(config: FillConfig) -> None:
    written = map_shards(write_block, list(range(config.blocks)), name="blocks", suffix=".bin", workers=WORKERS)
    Path(config.output_path).write_text(json.dumps(written.values))


def block(shard: int) -> bytes:
    return f"{shard:07d}\n".encode() * (BLOCK_BYTES // 8)


def write_block(shard: int, output_path: str) -> int:
    traces.leave(f"block-{shard:02d}")
    Path(output_path).write_bytes(block(shard))
    return BLOCK_BYTES


@dataclass(frozen=True, kw_only=True)
class TotalConfig:
    sizes: str
    output_path: str = this_output_path("total.txt")


def add_up(config: TotalConfig) -> None:
    Path(config.output_path).write_text(str(sum(json.loads(Path(config.sizes).read_text()))))


filled = ExecutorStep(name="filling/filled", fn=fill, config=FillConfig(blocks=BLOCKS))
total = ExecutorStep(name="filling/total", fn=add_up, config=TotalConfig(sizes=filled / "sizes.json"))

if __name__ == "__main__":
    executor_main(steps=[total], description=__doc__)
