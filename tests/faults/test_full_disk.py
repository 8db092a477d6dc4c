"""A disk that is full: a clear error, nothing torn, and the same command goes on once there is room.

A small tmpfs where one may be mounted; and everywhere a disk that takes so many bytes and then no more, because the
calls of `os` that need space are made to fail.
"""

import errno
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filling
import frugal
import pair
import pytest
import unruly
from harness import Site, Sites, expect_whole_records, note, seeds

from ponente.executor import ExecutorOptions, run_steps
from ponente.executor.records import Outcome
from ponente.store.volume import is_no_space

Mount = Callable[[str], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Mount]]:
    """A folder to mount a disk of a given size on; mounting once more changes its size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> None:
        again = "remount," if os.path.ismount(folder) else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"may not mount a tmpfs here: {done.stderr.strip()}")

    yield folder, mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def expect_told(text: str, site: Site) -> None:
    """An error in three parts: what was found, where, what to do."""
    assert "no space left" in text.lower(), text
    assert str(site.prefix) in text, text
    assert "run the same command again" in text, text


def test_a_run_that_fills_its_disk_says_so_tears_nothing_and_goes_on_once_there_is_room(
    sites: Sites, small_disk: tuple[Path, Mount]
) -> None:
    folder, mount = small_disk
    mount("size=2m")
    site = sites("filling", prefix=folder / "prefix")
    ended = site.run()
    assert ended.code == 1, ended
    expect_told(ended.out, site)
    assert "Traceback" not in ended.err
    site.expect_no_processes()
    assert site.published(filling.filled) is None
    assert not any(release.final for release in site.releases(filling.filled))
    shards = list(Path(site.folder(filling.filled).path, "state", "blocks").glob("*.bin"))
    assert shards
    assert all(shard.read_bytes() == filling.block(int(shard.stem)) for shard in shards)
    expect_whole_records(site.prefix)

    mount("size=16m")
    ended = site.run()
    assert ended.code == 0, ended
    executions = site.traces("block-*")
    assert sum(executions.values()) <= filling.BLOCKS + filling.WORKERS, executions
    assert site.published(filling.filled) == {
        f"blocks/{number:05d}.bin": filling.block(number) for number in range(filling.BLOCKS)
    } | {"sizes.json": str([filling.BLOCK_BYTES] * filling.BLOCKS).encode()}
    note("disk full", phase="in a sharded map")


def test_a_run_on_a_disk_that_is_already_full_says_so_and_starts_once_there_is_room(
    sites: Sites, small_disk: tuple[Path, Mount]
) -> None:
    folder, mount = small_disk
    mount("size=1m")
    (folder / "filler").write_bytes(bytes(1 << 20))
    site = sites("pair", prefix=folder / "prefix")
    ended = site.run()
    assert ended.code == 1, ended
    expect_told(ended.err, site)
    assert not site.traces("executed-*")
    (folder / "filler").unlink()
    ended = site.run()
    assert ended.code == 0, ended


@pytest.mark.parametrize("seed", seeds(4, soak=30))
def test_a_disk_that_takes_no_more_files_at_any_point_is_told_and_tears_nothing(
    seed: int, sites: Sites, small_disk: tuple[Path, Mount]
) -> None:
    folder, mount = small_disk
    files = random.Random(3000 + seed).randint(5, 45)
    print(f"room for {files} files")
    mount(f"size=16m,nr_inodes={files}")
    site = sites("pair", prefix=folder / "prefix")
    ended = site.run()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    if ended.code:
        expect_told(ended.out + ended.err, site)
    site.expect_no_processes()
    expect_whole_records(site.prefix)
    done = sum(site.published(step) is not None for step in pair.STEPS)
    note("no more files", phase=f"{done} of {len(pair.STEPS)} committed")
    mount("size=16m,nr_inodes=10000")
    ended = site.run()
    assert ended.code == 0, ended
    assert all(len(site.commits(step)) == 1 for step in pair.STEPS)


def test_a_step_that_finds_no_space_even_for_its_release_is_not_blamed_for_it(sites: Sites) -> None:
    site = sites("unruly")
    flags = ["--run_only", unruly.finds_no_space.name]
    ended = site.run(*flags)
    assert ended.code == 1, ended
    expect_told(ended.out, site)
    [release] = site.releases(unruly.finds_no_space)
    assert (release.outcome, release.final) == (Outcome.NO_SPACE, False)
    ended = site.run(*flags)
    assert ended.code == 0, ended


class SmallDisk:
    """Makes the calls of `os` that need space fail once so many bytes are taken; a new name costs a few of them."""

    NAME_BYTES = 64

    def __init__(self, budget: float, patch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        self._budget = budget
        self._write, self._open = os.write, os.open
        patch.setattr(os, "write", self._write_some)
        patch.setattr(os, "open", self._open_some)
        for name in ("link", "mkdir"):
            patch.setattr(os, name, self._naming(getattr(os, name)))

    def _take(self, amount: int) -> int:
        """How much of an amount there is still room for; an error where there is none."""
        room = int(min(amount, self._budget - self.taken))
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.taken += room
        return room

    def _write_some(self, descriptor: int, data: Any) -> int:
        return self._write(descriptor, data[: self._take(len(data))])

    def _open_some(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            self._take(self.NAME_BYTES)
        return self._open(path, flags, *rest, **more)

    def _naming(self, call: Callable[..., None]) -> Callable[..., None]:
        def checked(*arguments: Any, **more: Any) -> None:
            self._take(self.NAME_BYTES)
            call(*arguments, **more)

        return checked


def drive(site: Site) -> int:
    """Runs the frugal graph in this process; its exit code, 1 where not even its records found room."""
    try:
        return run_steps([frugal.report], ExecutorOptions(prefix=str(site.prefix), launcher="driver")).exit_code
    except OSError as error:
        assert is_no_space(error)
        return 1


@pytest.fixture(scope="module")
def frugal_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, dict[str, bytes]]]:
    """How many bytes an undisturbed run takes, and what it makes."""
    site = Site(Path(frugal.__file__), tmp_path_factory.mktemp("frugal") / "site")
    with pytest.MonkeyPatch.context() as patch:
        disk = SmallDisk(float("inf"), patch)
        assert drive(site) == 0
    return disk.taken, {step.name: site.published(step) for step in frugal.STEPS}


@pytest.mark.parametrize("seed", seeds(24, soak=300))
def test_wherever_the_space_ends_nothing_torn_is_visible_and_a_run_with_room_completes(
    seed: int,
    sites: Sites,
    frugal_run: tuple[int, dict[str, dict[str, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PONENTE_HEARTBEAT_SECONDS", "0.02")  # a claim that found no room for its release expires soon
    needed, outputs = frugal_run
    budget = random.Random(4000 + seed).uniform(0, needed)
    print(f"room for {budget:.0f} of {needed} bytes")
    site = sites("frugal")
    with pytest.MonkeyPatch.context() as patch:
        SmallDisk(budget, patch)
        code = drive(site)
    done = site.expect_only_whole_results(frugal.report, outputs)
    assert code == 1 or done == len(frugal.STEPS)
    note("disk full", phase=f"{done} of {len(frugal.STEPS)} committed")
    assert drive(site) == 0
    assert site.expect_only_whole_results(frugal.report, outputs) == len(frugal.STEPS)
