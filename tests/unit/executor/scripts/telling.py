"""Steps that write down what they were given, and a few that do one thing each."""

import datetime
import json
import logging
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import Level, Optimizer, Point, Sail, Season, Wind

from ponente.cluster import CpuOnly, map_shards, report_progress
from ponente.config import execution
from ponente.config.errors import UserError
from ponente.executor import ExecutorStep, Summary, this_output_path, this_state_path
from ponente.store.volume import publishing, volume_of


@dataclass(frozen=True, kw_only=True)
class EverythingConfig:
    """A value of every type that may travel."""

    number: int = 2**70
    ratio: float = math.nan
    most: float = math.inf
    flag: bool = True
    nothing: None = None
    text: str = "Föhn 风"
    listed: list[int] = field(default_factory=lambda: [1, 2])
    pair: tuple[int, str] = (1, "a")
    several: frozenset[str] = frozenset({"a", "b"})
    mapped: Any = None
    point: Any = None
    wind: Wind = Wind.PONENTE
    season: Season = Season.SUMMER
    level: Level = Level.HIGH
    sails: Sail = Sail.MAIN | Sail.JIB
    path: Path = Path("data/x")
    day: datetime.date = datetime.date(2026, 11, 15)
    moment: datetime.datetime = datetime.datetime(2026, 11, 15, 1, 2, 3)
    span: datetime.timedelta = datetime.timedelta(minutes=90)
    nested: Optimizer | None = None
    resources: Any = None
    workers: int = execution(3)
    output: str = this_output_path("told.json")
    state: str = this_state_path("kept")


EVERYTHING = EverythingConfig(
    mapped={1: "a", (2, 3): ["b"]},
    point=Point(1, 2.5),
    nested=Optimizer(rate=2.0),
    resources=CpuOnly(num_cpus=2),
    workers=5,
)


def tell(config: EverythingConfig) -> Summary:
    """Writes each field as Python writes it."""
    told = {name: repr(getattr(config, name)) for name in EverythingConfig.__dataclass_fields__}
    told["several"] = str(sorted(config.several))
    Path(config.output).write_text(json.dumps(told))
    return Summary(values={"fields": len(told)}, tables={"t": [{"a": 1, "b": None}]}, series={"loss": [2.0, 1.5]})


def talk(config: dict[str, Any]) -> None:
    """Prints, logs and reports progress; writes down its environment, and where it is and was."""
    print("said on standard output")
    print("said on standard error", file=sys.stderr)
    os.write(1, b"said by native code\n")
    logging.getLogger("talk").warning("said by a logger")
    report_progress(3, 4, unit="words", note="almost there")
    told = {"WIND": os.environ.get("WIND"), "pid": os.getpid(), "places": config}
    with publishing(config["output"]) as private:
        Path(private).write_text(json.dumps(told))


def remember(config: dict[str, Any]) -> None:
    """Fails the first time it runs; the second time it finds what the first one kept."""
    kept = Path(config["state"])
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("kept by the first attempt")
        (Path(config["output"]).parent / "half").write_text("half")
        raise RuntimeError("the first attempt fails")
    Path(config["output"]).write_text(kept.read_text())


def complain(config: dict[str, Any]) -> None:
    """Tells the user something, and counts how often it did."""
    with open(config["trace"], "a") as trace:
        trace.write("told\n")
    raise UserError("found no wind; needed one. Wait.")


def summarise(config: Any) -> Any:
    """Returns a summary as large as it is told."""
    return Summary(values={"text": "x" * config}) if isinstance(config, int) else Summary(values={"bad": object()})


def meet(config: dict[str, Any]) -> None:
    """Comes to a meeting and waits until all are there."""
    here = Path(config["where"])
    (here / config["who"]).touch()
    deadline = time.monotonic() + 30
    while len(list(here.iterdir())) < config["of"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {sorted(path.name for path in here.iterdir())} came")
        time.sleep(0.01)


def queue_up(config: dict[str, Any]) -> None:
    """Writes down when it comes and when it goes."""
    for word in ("comes", "goes"):
        with open(config["book"], "a") as book:
            book.write(f"{config['who']} {word}\n")
        time.sleep(0.05)


def square(shard: int, path: str) -> int:
    """One shard of a sharded map, on any volume."""
    volume_of(path).create(path, f"{shard * shard}\n".encode())
    return shard * shard


def square_all(config: dict[str, Any]) -> Summary:
    """A sharded map; children read `step / "squares"`."""
    squares = map_shards(square, list(range(config["n"])), name="squares", suffix=".txt", workers=config.get("workers"))
    return Summary(values={"sum": sum(squares.values)})


def add_up(config: dict[str, Any]) -> None:
    """Adds up the files of a folder, on any volume."""
    volume, folder = volume_of(config["in"]), config["in"]
    texts = [volume.read(f"{folder}/{name}") for name in volume.names(folder) if not name.startswith(".")]
    volume.create(config["out"], str(sum(map(int, texts))).encode())


def squares_graph(n: int) -> list[ExecutorStep]:
    """A sharded map and what adds it up."""
    squares = ExecutorStep(name="squares", fn=square_all, config={"n": n})
    total = ExecutorStep(name="total", fn=add_up, config={"in": squares / "squares", "out": this_output_path("total")})
    return [squares, total]
