"""100 chains of 10 steps in ponente, as the peers beside it have them. Writes under --prefix."""

from dataclasses import dataclass
from pathlib import Path

from ponente.executor import ExecutorStep, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class TouchConfig:
    parent: object = None
    output: object = this_output_path("done")


def touch(config: TouchConfig) -> None:
    Path(str(config.output)).write_text("done\n")


def chains() -> list[ExecutorStep]:
    steps = []
    for chain in range(100):
        parent = None
        for index in range(10):
            parent = ExecutorStep(name=f"chain-{chain}/step-{index}", fn=touch, config=TouchConfig(parent=parent))
            steps.append(parent)
    return steps


if __name__ == "__main__":
    executor_main(steps=chains(), description=__doc__)
