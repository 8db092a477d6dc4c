"""A nonblocking child reads what its parent has published so far; it neither runs the parent nor waits for it."""

import json

import watching
from harness import Site, Sites, wait_until

SO_FAR = {"scores.json": json.dumps({"step-1.json": watching.WEIGHTS}).encode()}


def expect_parent_at_work(site: Site) -> None:
    assert len(site.claims(watching.model)) == 1
    assert not site.commits(watching.model)


def test_a_child_in_another_driver_reads_whole_checkpoints_of_a_parent_that_is_running(sites: Sites) -> None:
    site = sites("watching")
    training = site.start("--run_only", "watching/model")
    site.await_trace("halfway")
    ended = site.run("--run_only", "watching/scores-so-far")
    assert ended.code == 0, ended
    assert site.published(watching.scores_so_far) == SO_FAR
    expect_parent_at_work(site)
    site.leave("go")
    ended = training.wait()
    assert ended.code == 0, ended
    assert site.traces("trained") == {"trained": 1}


def test_a_child_in_the_same_driver_runs_beside_its_parent(sites: Sites) -> None:
    site = sites("watching")
    program = site.start("--run_only", "watching/model", "watching/scores-[0-9a-f]{8}$", "--max_concurrent", "2")
    site.await_trace("halfway")
    wait_until(lambda: site.commits(watching.scores) or program.has_ended(), "the child was committed")
    assert site.published(watching.scores) == SO_FAR
    expect_parent_at_work(site)
    site.leave("go")
    ended = program.wait()
    assert ended.code == 0, ended
    assert len(site.commits(watching.model)) == 1


def test_a_parent_that_only_a_nonblocking_child_names_is_neither_run_nor_waited_for(sites: Sites) -> None:
    site = sites("watching")
    ended = site.run("--run_only", "watching/scores-so-far")
    assert ended.code == 0, ended
    assert site.published(watching.scores_so_far) == {"scores.json": b"{}"}
    assert site.entries(watching.model) == []
    assert not site.traces("trained")


def test_a_parent_that_is_killed_halfway_shows_its_child_only_what_it_had_published(sites: Sites) -> None:
    site = sites("watching")
    training = site.start("--run_only", "watching/model")
    site.await_trace("halfway")
    training.kill()
    training.wait()
    site.expect_no_processes()
    ended = site.run("--run_only", "watching/scores-so-far")
    assert ended.code == 0, ended
    assert site.published(watching.scores_so_far) == SO_FAR
