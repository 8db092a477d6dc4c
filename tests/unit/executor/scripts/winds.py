"""Three winds, each fed by the one before: a small graph whose numbers are read from the environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponente.config import execution, observation
from ponente.executor import ExecutorStep, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class WindConfig:
    """A wind's force and what feeds it."""

    force: int = 1
    source: Any = None
    workers: int = execution(1)
    note: str = observation("")
    output: str = this_output_path("wind.txt")


def blow(config: WindConfig) -> None:
    """Writes what came in, and its own force below it."""
    before = Path(config.source).read_text() if config.source else ""
    if config.force < 0:
        raise ValueError(f"found force={config.force}; a wind cannot blow backwards")
    Path(config.output).write_text(f"{before}{config.force}\n")


def winds(levante: int = 1, ponente: int = 2, tramontana: int = 3, **options: Any) -> list[ExecutorStep]:
    """levante -> ponente -> tramontana; `options` are config fields of all three."""
    first = ExecutorStep(name="winds/levante", fn=blow, config=WindConfig(force=levante, **options))
    second = ExecutorStep(
        name="winds/ponente", fn=blow, config=WindConfig(force=ponente, source=first / "wind.txt", **options)
    )
    third = ExecutorStep(
        name="winds/tramontana", fn=blow, config=WindConfig(force=tramontana, source=second / "wind.txt", **options)
    )
    return [first, second, third]


def force_of(wind: str, default: int) -> int:
    """The force that the environment asks for."""
    return int(os.environ.get(wind.upper(), default))


levante, ponente, tramontana = winds(force_of("levante", 1), force_of("ponente", 2), force_of("tramontana", 3))

if __name__ == "__main__":
    executor_main(steps=[tramontana], description="The winds of the west.\n\nThree of them.")
