"""A step that writes its output, says so, and waits for the test before it lets itself be committed."""

import os
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.executor import ExecutorStep, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class PatientConfig:
    output_path: str = this_output_path("made_by.txt")


def write_and_wait(config: PatientConfig) -> None:
    Path(config.output_path).write_text(str(os.getpid()))
    traces.leave(f"began-{os.getpid()}")
    traces.await_one("go")


patient = ExecutorStep(name="patient/step", fn=write_and_wait, config=PatientConfig())

if __name__ == "__main__":
    executor_main(steps=[patient], description=__doc__)
