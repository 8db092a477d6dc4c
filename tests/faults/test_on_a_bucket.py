"""The faults of the ground floor with the prefix in a bucket: the same outcomes, byte for byte those of a local run."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import bucket_servers
import diamond
import fsspec
import pytest
from disturbing_proxy import disturbing
from harness import Ended, Reference, Site, note, seeds, wait_until

from ponente.store.paths import protocol_of

SECONDS = 12.0  # about what the diamond takes in a bucket
QUICK = {"PONENTE_HEARTBEAT_SECONDS": "0.25"}


@pytest.fixture
def site(bucket: str, root: Path) -> Iterator[Site]:
    made = Site(Path(diamond.__file__), root / "site", f"{bucket}/runs")
    yield made
    made.kill_everything()


def expect_done(site: Site, ended: Ended, reference: Reference) -> None:
    assert ended.code == 0, ended
    assert site.expect_only_whole_results(diamond.joined, reference.outputs) == len(diamond.STEPS)


@pytest.mark.parametrize("seed", seeds(1, soak=20))
def test_a_driver_killed_at_any_moment_goes_on_to_the_outputs_of_a_local_run(
    seed: int, site: Site, undisturbed: Reference
) -> None:
    program = site.start()
    time.sleep(random.Random(seed).uniform(1.0, SECONDS))
    program.kill()
    program.wait()
    site.expect_no_processes()
    done = site.expect_only_whole_results(diamond.joined, undisturbed.outputs)
    note("driver killed, prefix in a bucket", phase=f"{done} of {len(diamond.STEPS)} committed")
    expect_done(site, site.run(), undisturbed)


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_two_drivers_of_which_one_is_killed_commit_each_step_once(
    seed: int, site: Site, undisturbed: Reference
) -> None:
    programs = [site.start(), site.start()]
    time.sleep(random.Random(100 + seed).uniform(1.0, SECONDS))
    programs[seed % 2].kill()
    programs[seed % 2].wait()
    note("one of two drivers killed, prefix in a bucket", phase="at any moment")
    expect_done(site, programs[1 - seed % 2].wait(), undisturbed)


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_processes_that_are_stopped_and_wake_up_late_commit_nothing_twice(
    seed: int, site: Site, undisturbed: Reference
) -> None:
    stopped = site.start(**QUICK)
    wait_until(lambda: site.claims(diamond.digests), "the sharded map was claimed")
    time.sleep(random.Random(200 + seed).uniform(0.0, 1.0))
    asleep = site.processes()
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect_done(site, site.run(**QUICK), undisturbed)
    finally:
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
    note("all processes of a driver stopped, prefix in a bucket", phase="in the sharded map")
    expect_done(site, stopped.wait(), undisturbed)


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_requests_that_are_lost_late_or_doubled_lose_and_double_nothing(
    seed: int, site: Site, undisturbed: Reference
) -> None:
    variable = bucket_servers.ENDPOINTS[protocol_of(str(site.prefix))]
    with disturbing(os.environ[variable], 0.05, seed) as (address, struck):
        ended = site.run(**{variable: address})
    for fate, times in struck.items():
        if fate != "passed":
            note(f"request {fate}", phase="on the way to a bucket", times=times)
    assert sum(times for fate, times in struck.items() if fate != "passed") > 5, struck
    expect_done(site, ended, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, soak=5))
def test_a_store_that_is_full_is_told_tears_nothing_and_the_run_goes_on_once_there_is_room(
    seed: int, root: Path, tmp_path: Path, undisturbed: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket_servers.S3_VARIABLES.items():
        monkeypatch.setenv(name, value)
    with bucket_servers.seaweedfs(tmp_path, volumes=8, volume_megabytes=1) as address:
        spared = random.Random(300 + seed).randint(0, 6)
        _fill(address, spared)
        site = Site(Path(diamond.__file__), root / "site", "s3://tests/runs")
        ended = site.run(AWS_ENDPOINT_URL=address, PONENTE_STORE_SECONDS="2")
        assert ended.code == 1, ended
        assert "s3://tests" in ended.out + ended.err and "tries" in ended.out + ended.err, ended
    with bucket_servers.seaweedfs(tmp_path, volumes=60, volume_megabytes=1) as address:
        bucket_servers.reach(address, monkeypatch)
        done = site.expect_only_whole_results(diamond.joined, undisturbed.outputs)
        note("store full", phase=f"{done} of {len(diamond.STEPS)} committed, room for {spared} x 128 KB")
        expect_done(site, site.run("--force_run_failed"), undisturbed)


def _fill(address: str, spared: int) -> None:
    """Fills a store of 8 MB but for some objects of 128 KB."""
    filesystem = fsspec.filesystem("s3", endpoint_url=address, skip_instance_cache=True)
    wait_until(lambda: _is_ready(filesystem), "the store was ready")
    for number in range(64 - spared):
        filesystem.pipe_file(f"tests/filler-{number}", os.urandom(1 << 17))


def _is_ready(filesystem: fsspec.AbstractFileSystem) -> bool:
    try:
        filesystem.mkdir("tests")
        return True
    except FileExistsError:
        return True
    except OSError:
        return False
