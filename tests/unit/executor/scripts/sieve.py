"""A sharded map whose function may be told, through the environment, what to write and which shard to refuse."""

import os
from pathlib import Path
from typing import Any

from ponente.cluster import map_shards
from ponente.executor import Estimate, ExecutorStep, Retries, step_type


def sift(config: dict[str, Any]) -> None:
    """Three shards, one of which may be set aside."""
    map_shards(sift_one, [0, 1, 2], name="grains", suffix=".txt", max_attempts=1, max_quarantined=config["budget"])


def sift_one(shard: int, path: str) -> None:
    """Writes what the environment says, unless it says to refuse this shard."""
    if os.environ.get("STONE") == str(shard):
        raise ValueError(f"shard {shard} is a stone")
    Path(path).write_text(os.environ.get("SIEVE", "old"))


def take_none() -> None:
    """A function of no arguments."""


def take_two(config: Any, other: Any) -> None:
    """A function of two arguments."""


def refuse_to_say(config: Any) -> Estimate:
    """An estimate that fails."""
    raise KeyError("tokens")


@step_type(estimate=refuse_to_say)
def guess(config: Any) -> None:
    """A step whose estimate fails."""


@step_type(estimate=lambda config: 5)  # type: ignore[arg-type,return-value]
def guess_badly(config: Any) -> None:
    """A step whose estimate is none."""


def sieve(budget: int = 0) -> ExecutorStep:
    """The map as a step."""
    return ExecutorStep(name="sieve", fn=sift, config={"budget": budget}, retries=Retries(errors=0))
