"""A step or a worker that is killed in the middle of a sharded map redoes at most the shards in flight."""

import json
from pathlib import Path

import pytest
import thousand
from harness import Site, Sites, note, seeds

from ponente.executor.records import Outcome

EXPECTED = {f"squares/{shard:05d}.txt": f"{shard * shard}\n".encode() for shard in range(thousand.SHARDS)} | {
    "squares.json": json.dumps([shard * shard for shard in range(thousand.SHARDS)]).encode()
}


def expect_at_most_one_shard_a_worker_redone(site: Site) -> None:
    executions = site.traces("shard-*")
    assert len(executions) == thousand.SHARDS
    assert sum(executions.values()) <= thousand.SHARDS + thousand.WORKERS, executions
    assert site.published(thousand.squares) == EXPECTED


@pytest.mark.parametrize("round", seeds(1, soak=5))
def test_a_step_killed_at_shard_700_of_1000_redoes_at_most_one_shard_a_worker(round: int, sites: Sites) -> None:
    site = sites("thousand")
    site.leave("bomb-step")
    ended = site.run()
    note("step killed", phase="shard 700 of 1000")
    assert ended.code == 0, ended
    expect_at_most_one_shard_a_worker_redone(site)
    assert [release.outcome for release in site.releases(thousand.squares)] == [Outcome.PREEMPTED]
    assert not site.traces("survived")
    outputs = [path.name for path in Path(site.folder(thousand.squares).path).glob("output-*")]
    assert len(outputs) == 1, f"outputs of attempts that came to nothing are kept: {outputs}"


@pytest.mark.parametrize("round", seeds(1, soak=5))
def test_a_worker_killed_at_shard_700_of_1000_costs_its_shard_and_not_the_step(round: int, sites: Sites) -> None:
    site = sites("thousand")
    site.leave("bomb-worker")
    ended = site.run()
    note("worker killed", phase="shard 700 of 1000")
    assert ended.code == 0, ended
    expect_at_most_one_shard_a_worker_redone(site)
    assert len(site.claims(thousand.squares)) == 1
    [event] = site.folder(thousand.squares).events()
    assert (event["kind"], event["shard"]) == ("shard_failed", thousand.BOMB_AT)
    assert "SIGKILL" in event["error"]


@pytest.mark.parametrize("round", seeds(1, soak=5))
def test_a_driver_killed_at_shard_700_of_1000_leaves_at_most_one_shard_a_worker_to_redo(
    round: int, sites: Sites
) -> None:
    site = sites("thousand")
    site.leave("bomb-driver")
    program = site.start()
    site.await_trace("waits-for-the-driver-to-be-killed")
    program.kill()
    program.wait()
    note("driver killed", phase="shard 700 of 1000")
    site.expect_no_processes()
    assert site.published(thousand.squares) is None
    ended = site.run()
    assert ended.code == 0, ended
    expect_at_most_one_shard_a_worker_redone(site)
    assert not site.traces("survived")
