"""A default that was changed re-runs nothing, as no default does; the plan tells of it where a result rests on it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from dataclasses import dataclass, field

from ponente.config import observation
from ponente.executor import ExecutorStep, executor_main


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    beta: float = 0.9


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int
    rate: float = 0.1
    tags: tuple[str, ...] = observation(())
    optimizer: OptimizerConfig = OptimizerConfig()


def train(config):
    pass


resting = ExecutorStep(name="resting", fn=train, config=TrainConfig(steps=1))
other = OptimizerConfig(beta=0.5)
saying = ExecutorStep(name="saying", fn=train, config=TrainConfig(steps=1, rate=0.5, optimizer=other))

if __name__ == "__main__":
    executor_main(steps=[resting, saying])
"""


def lines_of(script: Path, *flags: str) -> list[str]:
    command = [sys.executable, str(script), "--prefix", str(script.parent / "runs"), "--launcher", "driver", *flags]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert lines_of(path) == ["2 steps: 2 done"]
    return path


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rate: float = 0.1", "rate: float = 0.9", "TrainConfig.rate was 0.1 then and is 0.9 now"),
        (
            "beta: float = 0.9",
            "beta: float = 0.8",
            "OptimizerConfig.beta was 0.9 then and is 0.8 now",
        ),
    ],
)
def test_a_changed_default_is_told_of_results_that_rest_on_it(script: Path, old: str, new: str, told: str) -> None:
    script.write_text(SCRIPT.replace(old, new))
    resting, saying = lines_of(script, "--dry_run")[1:3]
    assert resting.split()[0] == saying.split()[0] == "hit"
    assert resting.endswith(f"BUT the default of {told}")
    assert "BUT" not in saying


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    steps: int\n", "    steps: int\n    added: int = 3\n"),
        ("observation(())", 'observation(("x",))'),
        ("    rate: float = 0.1\n", "    rate: float = 0.1  # as ever\n"),
    ],
)
def test_a_new_field_and_a_default_that_is_no_identity_are_not_told(script: Path, old: str, new: str) -> None:
    script.write_text(SCRIPT.replace(old, new))
    assert "BUT" not in "".join(lines_of(script, "--dry_run"))
