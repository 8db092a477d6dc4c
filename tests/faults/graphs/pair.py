"""A small diamond that tells of each execution; two drivers are set on it at once."""

import os
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.executor import ExecutorStep, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    name: str
    parents: list[str]
    output_path: str = this_output_path("text.txt")


def write_node(config: NodeConfig) -> None:
    """Joins what the parents wrote; the process is named, so that a second execution would show."""
    traces.leave(f"executed-{config.name}")
    above = [Path(parent).read_text() for parent in config.parents]
    Path(config.output_path).write_text(f"{config.name} of {os.getpid()} after [{', '.join(above)}]")


def node(name: str, *parents: ExecutorStep) -> ExecutorStep:
    config = NodeConfig(name=name, parents=[parent / "text.txt" for parent in parents])
    return ExecutorStep(name=f"pair/{name}", fn=write_node, config=config)


top = node("top")
left = node("left", top)
right = node("right", top)
bottom = node("bottom", left, right)

STEPS = [top, left, right, bottom]

if __name__ == "__main__":
    executor_main(steps=[bottom], description=__doc__)
