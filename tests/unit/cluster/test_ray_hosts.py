"""What runs inside Ray's workers, without Ray around it."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import cloudpickle

from ponente.cluster.ray.host import ShardHost
from ponente.config.errors import RefusedError


def double(key: int) -> int:
    return 2 * key


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


def test_a_worker_on_a_machine_that_does_not_see_the_place_says_so(tmp_path: Path) -> None:
    made: Any = cloudpickle.dumps(double)
    with pytest.raises(RefusedError, match=r"found no .*/none on .*; needed a place that all machines .* see"):
        ShardHost(made, [], {}, str(tmp_path / "none"))
    assert ShardHost(made, [], {}, str(tmp_path)).run(4).value == 8
    assert ShardHost(made, [], {}, "s3://far/away").run(5).value == 10
