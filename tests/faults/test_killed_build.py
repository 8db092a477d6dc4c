"""A cache build that is killed, at any moment and as often as one likes, ends with the bytes of one that was not."""

import contextlib
import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import SOAK, note, seeds, wait_until

from ponente.store.token_cache.cache import open_cache, open_growing_cache
from ponente.store.token_cache.ledger import read_plan
from ponente.store.volume import volume_of

PROGRAM = Path(__file__).parent / "graphs" / "token_build.py"


@pytest.fixture(scope="session")
def corpus(tiny_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One large compressed file, which is one unit, and a plain one."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    for name, count in (("a.jsonl.gz", 20_000), ("b.jsonl", 3_000)):
        lines = [json.dumps({"text": " ".join(draw.sample(tiny_texts, 3))}) for _ in range(count)]
        data = ("\n".join(lines) + "\n").encode()
        (folder / name).write_bytes(gzip.compress(data, 1, mtime=0) if name.endswith("gz") else data)
    return folder


def start(corpus: Path, tokenizer: str, cache: Path | str, workers: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(corpus), tokenizer, str(cache), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(corpus: Path, tokenizer: str, cache: Path | str, workers: int = 2) -> str:
    process = start(corpus, tokenizer, cache, workers)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def digests(cache: Path) -> dict[str, str]:
    return {
        str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(cache.rglob("*"))
        if path.is_file()
    }


def segments(cache: Path) -> list[str]:
    folder = cache / "segments"
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []


@pytest.fixture(scope="session")
def whole(corpus: Path, tiny_tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The cache of a build that nobody disturbed, with one worker."""
    cache = tmp_path_factory.mktemp("whole") / "cache"
    finish(corpus, tiny_tokenizer, cache, workers=1)
    assert len(segments(cache)) > 30
    return digests(cache)


@pytest.mark.parametrize("seed", seeds(3, soak=40))
def test_a_build_killed_again_and_again_ends_with_the_same_bytes(
    seed: int, corpus: Path, tiny_tokenizer: str, whole: dict[str, str], tmp_path: Path
) -> None:
    draw, cache = random.Random(seed), tmp_path / "cache"
    written: dict[str, int] = {}
    for _ in range(3):
        process = start(corpus, tiny_tokenizer, cache)
        goal = len(segments(cache)) + draw.randint(0, 12)
        wait_until(lambda: process.poll() is not None or len(segments(cache)) >= goal, "segments are published")
        time.sleep(draw.random() * 0.02)
        os.killpg(process.pid, signal.SIGKILL) if draw.random() < 0.7 else process.kill()
        process.communicate()
        note("cache build killed", phase="some segments published" if segments(cache) else "no segment published")
        for name, inode in written.items():
            assert (cache / "segments" / name).stat().st_ino == inode, f"{name} was made again"
        written = {name: (cache / "segments" / name).stat().st_ino for name in segments(cache)}
    finish(corpus, tiny_tokenizer, cache)
    assert digests(cache) == whole
    assert {name: (cache / "segments" / name).stat().st_ino for name in written} == written


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_a_build_in_a_bucket_that_is_killed_again_and_again_ends_with_the_same_tokens(
    seed: int, bucket: str, corpus: Path, tiny_tokenizer: str, tmp_path: Path
) -> None:
    finish(corpus, tiny_tokenizer, tmp_path / "whole")
    draw, cache, volume = random.Random(500 + seed), f"{bucket}/cache", volume_of(bucket)

    def published() -> dict[str, str | None]:
        names = [name for name in volume.names(f"{cache}/segments") if name[0] != "."]
        return {name: volume.published_folder(f"{cache}/segments/{name}") for name in names}

    written: dict[str, str | None] = {}
    for _ in range(2 if os.environ.get(SOAK) else 1):
        process = start(corpus, tiny_tokenizer, cache)
        goal = len(written) + draw.randint(0, 12)
        wait_until(lambda: process.poll() is not None or len(published()) >= goal, "segments are published")
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.killpg(process.pid, signal.SIGKILL) if draw.random() < 0.7 else process.kill()
        process.communicate()
        assert written.items() <= published().items()  # none was made again
        written = published()
        note("cache build killed, in a bucket", phase="some segments published" if written else "no segment published")
    finish(corpus, tiny_tokenizer, cache)
    assert written.items() <= published().items()
    found, expected = open_cache(cache), open_cache(str(tmp_path / "whole"))
    assert found.tokens == expected.tokens
    assert (found.read(0, found.tokens) == expected.read(0, found.tokens)).all()


def test_a_worker_that_is_killed_costs_only_its_unit_in_flight(
    corpus: Path, tiny_tokenizer: str, whole: dict[str, str], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    process = start(corpus, tiny_tokenizer, cache)
    wait_until(lambda: len(segments(cache)) >= 3, "segments are published")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert digests(cache) == whole


def test_two_builds_of_one_cache_at_once_make_it_once(
    corpus: Path, tiny_tokenizer: str, whole: dict[str, str], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    both = [start(corpus, tiny_tokenizer, cache, workers=1) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert digests(cache) == whole


def test_a_reader_of_a_growing_cache_sees_only_what_the_finished_one_has(
    corpus: Path, tiny_tokenizer: str, tmp_path: Path
) -> None:
    cache, seen = tmp_path / "cache", []
    process = start(corpus, tiny_tokenizer, cache)
    ended = threading.Thread(target=process.communicate)
    ended.start()
    wait_until(lambda: read_plan(str(cache)), "the build begins")
    growing = open_growing_cache(str(cache))
    while not growing.is_finished:
        growing.refresh()
        if growing.tokens:
            seen.append((growing.tokens, growing.read(max(0, growing.tokens - 500), growing.tokens).tolist()))
        assert ended.is_alive() or not process.returncode
    ended.join()
    finished = open_cache(str(cache))
    assert len({tokens for tokens, _ in seen}) > 2  # it grew before our eyes
    for tokens, last in seen:
        assert finished.read(max(0, tokens - 500), tokens).tolist() == last


def test_a_full_disk_is_said_and_the_build_goes_on_when_there_is_room(
    corpus: Path, tiny_tokenizer: str, whole: dict[str, str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        process = start(corpus, tiny_tokenizer, disk / "cache")
        _, err = process.communicate(timeout=120)
        assert process.returncode != 0
        assert "No space left on device" in err
        kept = segments(disk / "cache")
        assert kept
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        finish(corpus, tiny_tokenizer, disk / "cache")
        assert digests(disk / "cache") == whole
        note("disk full during a cache build", phase="some segments published")
    finally:
        subprocess.run(["umount", disk], check=True)
