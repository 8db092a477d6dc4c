"""One step of every shape that a config can have. As a program it prints the identity of each, as JSON.

It imports nothing but ponente, so that any Python that can import ponente can be asked for its identities.
"""

import datetime
import enum
import json
import math
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from ponente.cluster import CpuOnly
from ponente.config import execution, observation
from ponente.executor import ExecutorStep, this_output_path, this_state_path, versioned
from ponente.executor.graph import build_graph


class Wind(enum.Enum):
    LEVANTE = "east"
    PONENTE = "west"


class Season(enum.StrEnum):
    SUMMER = "summer"


class Level(enum.IntEnum):
    HIGH = 3


class Sail(enum.Flag):
    MAIN = enum.auto()
    JIB = enum.auto()


Point = namedtuple("Point", ["x", "y"])


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    log_every: int = observation(10)


@dataclass(frozen=True, kw_only=True)
class Train:
    data: Any = None
    steps: int = 100
    rate: float = 0.5
    optimizer: Optimizer = Optimizer()
    names: list[str] = field(default_factory=list)
    workers: int = execution(4)
    tags: tuple[str, ...] = observation(())
    output: str = this_output_path("model")


@dataclass(frozen=True, kw_only=True)
class Renamed:
    identity_name: ClassVar[str] = "OldName"
    identity_version: ClassVar[int] = 2

    width: int = 1


def act(config: Any) -> None:
    """What all these steps would do."""


def step(config: Any = None, name: str = "zoo/animal", **options: Any) -> ExecutorStep:
    return ExecutorStep(name=name, fn=act, config=config, **options)


parent = step({"depth": 0}, name="zoo/parent")
ANIMALS: dict[str, Any] = {
    "nothing": None,
    "text": "ponente",
    "unicode": "Föhn — 风 🌬",
    "numbers": [0, 1, -1, 2**70, True, False, None],
    "floats": [0.0, -0.0, 0.1, 1e22, 1e-7, 1 / 3, 5e-324, 1.7976931348623157e308],
    "no numbers": [math.nan, math.inf, -math.inf],
    "list": [1, [2, [3]]],
    "tuple": (1, (2, (3,))),
    "set": {"levante", "ponente", "tramontana", "mistral", "sirocco", "bora"},
    "frozen set": frozenset({3, 1, 2}),
    "set of tuples": {("a", 1), ("b", 2), ("a", 2)},
    "dict": {"b": 1, "a": {"d": 2, "c": 3}},
    "dict of other keys": {1: "a", (2, 3): "b", None: "c", Wind.PONENTE: "d", "plain": "e", "$dollar": "f"},
    "enums": [Wind.PONENTE, Season.SUMMER, Level.HIGH],
    "flags": Sail.MAIN | Sail.JIB,
    "paths": [Path("data/x"), PurePosixPath("/data/y")],
    "times": [
        datetime.date(2026, 11, 15),
        datetime.datetime(2026, 11, 15, 1, 2, 3, 4),
        datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC),
        datetime.timedelta(days=1, microseconds=7),
    ],
    "named tuple": Point(1, 2.5),
    "dataclass": Train(steps=7, optimizer=Optimizer(rate=2), names=["a"]),
    "dataclass at its defaults": Train(),
    "renamed dataclass": Renamed(width=3),
    "versioned": versioned({"x": versioned(1)}),
    "own places": [this_output_path(), this_output_path("a") / "b", this_state_path("c")],
    "resources inside": {"ask": CpuOnly(num_cpus=3), "x": 1},
    "secret": {"api_key": "whatever it is", "max_tokens": 5},
    "dependency": Train(data=parent),
    "dependencies": {"paths": (parent / "a", [parent / "b/c"]), "watched": parent.nonblocking()},
}


def identities() -> dict[str, str]:
    """The identity of each animal's step."""
    return {name: build_graph([animal := step(config)]).node_of(animal).identity for name, config in ANIMALS.items()}


if __name__ == "__main__":
    print(json.dumps(identities()))
