"""Shards that are good, poisonous in several ways, or heavy; and a step that maps over some of them."""

import inspect
import os
import signal
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import traces

from ponente.cluster import map_shards
from ponente.executor import ExecutorStep, Retries, executor_main, this_output_path


def handle(shard: str, output_path: str) -> str:
    """Does what the shard's name says."""
    traces.leave(f"shard-{shard}")
    if shard == "raises":
        raise ValueError("this shard cannot be read")
    if shard == "exits":
        os._exit(9)
    if shard == "hangs":
        time.sleep(600)
    if shard == "dies-answering":
        _die_in_the_middle_of_the_answer()
    Path(output_path).write_text(shard.upper())
    return shard.upper()


def _die_in_the_middle_of_the_answer() -> None:
    """Sends the head of a long message to the step's process and dies."""
    frames = [frame.frame.f_locals for frame in inspect.stack()]
    [connection] = {value for names in frames for value in names.values() if isinstance(value, Connection)}
    os.write(connection.fileno(), struct.pack("!i", 100_000) + b"the beginning of an answer")
    os.kill(os.getpid(), signal.SIGKILL)


def order(shard: str) -> None:
    """Tells when it was handed out, in the order of one file."""
    with (traces.folder() / "order").open("a") as file:
        file.write(f"{os.path.basename(shard)}\n")


def wait_for_all_others(shard: int) -> int:
    """The heaviest shard, 0, ends when all others have: a worker that waits for its turn would wait for ever."""
    if shard == 0:
        for other in range(1, 8):
            traces.await_one(f"light-{other}")
    else:
        traces.leave(f"light-{shard}")
    return os.getpid()


@dataclass(frozen=True, kw_only=True)
class MapConfig:
    shards: list[str]
    max_quarantined: int
    output_path: str = this_output_path("quarantined.txt")


def handle_all(config: MapConfig) -> None:
    """One worker, so that all good shards are done before the bad ones come round again."""
    result = map_shards(
        handle, config.shards, suffix=".txt", workers=1, max_attempts=2, max_quarantined=config.max_quarantined
    )
    Path(config.output_path).write_text("\n".join(shard.shard for shard in result.quarantined))


def mapped(name: str, max_quarantined: int) -> ExecutorStep:
    config = MapConfig(shards=["a", "raises", "b", "exits", "c"], max_quarantined=max_quarantined)
    return ExecutorStep(name=f"shard_kinds/{name}", fn=handle_all, config=config, retries=Retries(errors=0))


tolerant = mapped("tolerant", 2)
strict = mapped("strict", 1)

if __name__ == "__main__":
    executor_main(steps=[tolerant, strict], description=__doc__)
