"""What runs inside Ray's workers, without Ray around it."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import cloudpickle

from ponente.cluster.ray import launcher
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


def test_what_waits_for_a_machine_says_for_which_and_whether_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [{"Alive": alive, "Resources": {"CPU": cores}} for alive, cores in ((True, 2.0), (False, 99.0))]
    monkeypatch.setattr(launcher, "nodes", lambda: there)
    asked = {"num_cpus": 64}
    running = launcher._OnRay("step", None, lambda code: None, asked, has_packages=False)
    assert running.waits_for == "a machine with {'num_cpus': 64} to spare (the largest has 2 cores by now)"
    running._is_placed = True
    assert running.waits_for is None
    words = launcher._waited_for({"num_cpus": 1}, has_packages=True)
    assert words == "a machine with {'num_cpus': 1} to spare, or for its packages to be installed there"
