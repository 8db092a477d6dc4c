"""A Ray cluster of two nodes: the same outputs as a local run, whatever is killed, and wherever it was."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lanes
import pytest
from harness import Ended, Reference, Site, note, seeds, wait_until

RAY = {"PONENTE_HEARTBEAT_SECONDS": "0.5", "RAY_AUTH_MODE": "disabled"}


class TwoNodes:
    """A cluster of this test run: a first node, which stays, and a second, which tests may kill."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("two_nodes.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        told = self._line()
        assert told.startswith("{"), log.read_text()
        self.address, self.job_server = json.loads(told).values()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def do(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._line().strip() == "done"

    def end(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    pytest.importorskip("ray")
    made = TwoNodes(tmp_path_factory.mktemp("ray") / "log")
    yield made
    made.end()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What the graph makes on this machine without Ray."""
    site = Site(Path(lanes.__file__), tmp_path_factory.mktemp("alone") / "site")
    began = time.monotonic()
    ended = site.run()
    assert ended.code == 0, ended
    outputs = {step.name: site.published(step) or {} for step in lanes.STEPS}
    assert all(outputs.values())
    return Reference(outputs, time.monotonic() - began)


@pytest.fixture
def site(nodes: TwoNodes, root: Path) -> Iterator[Site]:
    nodes.do("restore")
    made = Site(Path(lanes.__file__), root / "site")
    yield made
    made.kill_everything()


def expect_done(site: Site, ended: Ended, alone: Reference) -> None:
    assert ended.code == 0, ended
    assert site.expect_only_whole_results(lanes.joined, alone.outputs) == len(lanes.STEPS) == 33
    assert len(site.traces("shard-*")) == lanes.LANES * lanes.SHARDS


def test_outputs_are_those_of_a_local_run_and_no_shard_is_made_twice(
    nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    ended = site.run("--cluster", nodes.address, **RAY)
    expect_done(site, ended, alone)
    assert set(site.traces("shard-*").values()) == {1}
    again = site.run("--cluster", nodes.address, **RAY)
    assert again.code == 0 and "every step was a hit: 33 steps" in again.out, again


@pytest.mark.parametrize("seed", seeds(2, soak=10))
def test_a_node_that_dies_in_a_map_or_a_step_is_done_without(
    seed: int, nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    program = site.start("--cluster", nodes.address, **RAY)
    wait_until(lambda: site.traces("shard-*"), "a shard was begun")
    time.sleep(random.Random(seed).uniform(0.0, 4.0))
    nodes.do("kill")
    note("node of a Ray cluster killed", phase="in maps and steps")
    expect_done(site, program.wait(), alone)
    assert sum(site.traces("shard-*").values()) <= lanes.LANES * lanes.SHARDS + 4  # what was in work there


@pytest.mark.parametrize("seed", seeds(2, soak=10))
def test_a_driver_that_dies_leaves_its_steps_running_and_the_next_one_waits_for_them(
    seed: int, nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    program = site.start("--cluster", nodes.address, **RAY)
    wait_until(lambda: site.traces("shard-*"), "a shard was begun")
    time.sleep(random.Random(50 + seed).uniform(0.0, 2.0))
    program.kill()
    program.wait()
    note("driver of a Ray cluster killed", phase="in maps and steps")
    expect_done(site, site.run("--cluster", nodes.address, **RAY), alone)
    assert set(site.traces("shard-*").values()) == {1}  # what ran went on
