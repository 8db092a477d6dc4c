"""Fixtures for the tests of the executor. The modules of `scripts/` are imported by their file's name."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ponente.executor import ExecutorOptions, ExecutorStep, plan_steps, run_steps
from ponente.executor.outcome import RunOutcome
from ponente.executor.plan import Plan
from ponente.store.volume import volume_of

SCRIPTS = Path(__file__).parent / "scripts"
sys.path[:0] = [str(SCRIPTS)] if str(SCRIPTS) not in sys.path else []


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A prefix of the test's own, where nothing is yet."""
    return str(tmp_path / "prefix")


@pytest.fixture
def memory_prefix() -> Iterator[str]:
    """A prefix of memory:// that no other test uses."""
    place = f"memory://test-{secrets.token_hex(6)}"
    yield place
    volume_of(place).remove(place)


@pytest.fixture
def run(prefix: str) -> Callable[..., RunOutcome]:
    """`run(*steps, **options)` under the test's prefix, in this process."""

    def run(*steps: ExecutorStep, description: str | None = None, **options: Any) -> RunOutcome:
        chosen = ExecutorOptions(**{"prefix": prefix, "launcher": "driver", **options})
        return run_steps(list(steps), chosen, description=description)

    return run


@pytest.fixture
def plan(prefix: str) -> Callable[..., Plan]:
    """`plan(*steps, **options)` under the test's prefix."""

    def plan(*steps: ExecutorStep, **options: Any) -> Plan:
        return plan_steps(list(steps), ExecutorOptions(**{"prefix": prefix, "launcher": "driver", **options}))

    return plan
