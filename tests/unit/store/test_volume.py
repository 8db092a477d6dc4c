"""Whatever races, raises or is killed: a name shows one whole thing, or nothing."""

import errno
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from ponente.store.expansion import expand
from ponente.store.memory import MemoryVolume
from ponente.store.paths import PRIVATE_MARK, parent
from ponente.store.volume import is_no_space, private_path, publishing, publishing_folder, register_volume, volume_of

CREATE_ALL = """
import json, sys
from ponente.store.volume import volume_of
folder, mine = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
volume = volume_of(folder)
print(json.dumps([name for name in range(200) if volume.create(f"{folder}/log/{name:06d}", mine.encode())]))
"""

PUBLISH_HALF = """
import sys, time
from ponente.store.volume import publishing
with publishing(sys.argv[1] + "/a.bin") as private:
    with open(private, "wb") as file:
        file.write(b"half")
        file.flush()
        print("ready", flush=True)
        time.sleep(60)
"""

PUBLISH_FOR_EVER = """
import itertools, sys
from ponente.store.volume import publishing, publishing_folder, volume_of
folder, volume = sys.argv[1], volume_of(sys.argv[1])
for number in itertools.count():
    content = bytes([number % 256]) * 300_000
    with publishing(f"{folder}/published-{number}") as private:
        open(private, "wb").write(content)
    volume.create(f"{folder}/created-{number}", content)
    volume.replace(f"{folder}/replaced", content)
    with publishing_folder(f"{folder}/folder-{number}") as private:
        for name in "ab":
            open(f"{private}/{name}", "wb").write(content)
    if number == 0:
        print("ready", flush=True)
"""


def start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def visible(folder: str) -> list[str]:
    return sorted(name for name in volume_of(folder).names(folder) if not name.startswith(PRIVATE_MARK))


def write(path: str, data: bytes) -> None:
    volume_of(path).replace(path, data)


def test_of_fifty_threads_that_create_a_file_exactly_one_wins(folder: str) -> None:
    count, names = (12, 5) if folder.startswith("s3://") else (50, 20)  # a server takes its time
    volume, barrier = volume_of(folder), threading.Barrier(count)

    def attempt(number: int) -> list[bool]:
        barrier.wait()
        return [volume.create(f"{folder}/log/{name}", str(number).encode()) for name in range(names)]

    with ThreadPoolExecutor(count) as pool:
        outcomes = list(pool.map(attempt, range(count)))
    for name in range(names):
        winners = [number for number, won in enumerate(outcomes) if won[name]]
        assert len(winners) == 1
        assert volume.read(f"{folder}/log/{name}") == str(winners[0]).encode()
    assert sorted(map(int, volume.names(f"{folder}/log"))) == list(range(names))


def test_of_several_processes_that_create_a_file_exactly_one_wins(tmp_path: Path) -> None:
    processes = [start(CREATE_ALL, str(tmp_path), str(number)) for number in range(4)]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [set(json.loads(process.communicate()[0])) for process in processes]
    assert sum(map(len, won)) == 200
    assert set.union(*won) == set(range(200))
    for number, names in enumerate(won):
        assert all((tmp_path / "log" / f"{name:06d}").read_text() == str(number) for name in names)
    assert len(os.listdir(tmp_path / "log")) == 200


def test_of_many_threads_that_publish_a_folder_exactly_one_wins(folder: str) -> None:
    volume, barrier, path = volume_of(folder), threading.Barrier(20), f"{folder}/out"

    def attempt(number: int) -> bool:
        private = private_path(path)
        write(f"{private}/a", str(number).encode())
        barrier.wait()
        return volume.publish_folder(private, path)

    with ThreadPoolExecutor(20) as pool:
        won = list(pool.map(attempt, range(20)))
    assert sum(won) == 1
    published = volume.published_folder(path)
    assert published is not None
    assert volume.read(f"{published}/a") == str(won.index(True)).encode()


def test_a_file_that_is_created_twice_keeps_its_first_bytes(folder: str) -> None:
    volume, path = volume_of(folder), f"{folder}/deep/er/a"
    assert volume.create(path, b"first")
    assert not volume.create(path, b"second")
    assert volume.read(path) == b"first"
    assert volume.size(path) == 5
    assert volume.names(parent(path)) == ["a"]


def test_a_reader_of_a_replaced_file_sees_the_old_or_the_new_bytes_whole(folder: str) -> None:
    volume, path = volume_of(folder), f"{folder}/a"
    versions = [bytes([65 + number]) * (50_000 + number) for number in range(4)]
    write(path, versions[0])
    done = threading.Event()

    def replace_often() -> None:
        for number in range(100):
            volume.replace(path, versions[number % 4])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(replace_often)
        while not done.is_set() and not writer.done():
            assert volume.read(path) in versions
        writer.result()
    assert volume.names(folder) == ["a"]


def test_files_of_any_length_are_read_whole(folder: str) -> None:
    volume = volume_of(folder)
    for length in (0, 1, 65_535, 65_536, 65_537, 3_000_000):
        data = random.Random(length).randbytes(length)
        volume.create(f"{folder}/{length}", data)
        assert volume.read(f"{folder}/{length}") == data
        assert volume.size(f"{folder}/{length}") == length


def test_what_is_not_there_reads_lists_and_goes_as_expected(folder: str) -> None:
    volume = volume_of(folder)
    write(f"{folder}/a", b"1")
    with pytest.raises(FileNotFoundError):
        volume.read(f"{folder}/missing")
    assert volume.names(f"{folder}/missing") == []
    assert volume.names(f"{folder}/a") == []
    assert not volume.exists(f"{folder}/missing")
    assert volume.published_folder(f"{folder}/missing") is None
    volume.remove(f"{folder}/missing")
    assert volume.names(folder) == ["a"]


def test_removing_takes_a_file_or_a_folder_with_all_below_and_nothing_beside(folder: str) -> None:
    volume = volume_of(folder)
    for name in ("a", "ab", "sub/deep/x", "sub/y", "subs/z", "a[b]*/x"):
        write(f"{folder}/{name}", b"1")
    volume.make_folder(f"{folder}/sub/empty/er")
    volume.remove(f"{folder}/a")
    volume.remove(f"{folder}/sub")
    volume.remove(f"{folder}/a[b]*")
    assert not volume.exists(f"{folder}/sub")
    assert sorted(volume.names(folder)) == ["ab", "subs"]


def test_publishing_shows_nothing_before_the_block_ends_and_the_whole_file_after(folder: str) -> None:
    path = f"{folder}/new/a.bin"
    with publishing(path) as private:
        write(private, b"whole")
        assert not volume_of(path).exists(path)
        assert visible(parent(path)) == []
    assert volume_of(path).read(path) == b"whole"
    assert volume_of(path).names(parent(path)) == ["a.bin"]


def test_publishing_that_raises_leaves_nothing_behind(folder: str) -> None:
    for publish in (publishing, publishing_folder):
        with pytest.raises(KeyboardInterrupt), publish(f"{folder}/a") as private:
            write(private if publish is publishing else f"{private}/x", b"half")
            raise KeyboardInterrupt
    assert volume_of(folder).names(folder) == []


def test_publishing_without_having_written_is_an_error(folder: str) -> None:
    with pytest.raises(FileNotFoundError), publishing(f"{folder}/a"):
        pass
    assert volume_of(folder).names(folder) == []


def test_what_was_published_first_stays_and_the_log_says_so(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{folder}/a[0]*.bin"
    with caplog.at_level(logging.WARNING):
        for content in (b"first", b"second"):
            assert not caplog.records
            with publishing(path) as private:
                write(private, content)
    assert volume_of(path).read(path) == b"first"
    assert volume_of(path).names(folder) == ["a[0]*.bin"]
    assert path in caplog.text


def test_a_file_may_be_published_from_any_place_without_loss_of_its_neighbours(folder: str) -> None:
    volume = volume_of(folder)
    write(f"{folder}/draft", b"draft")
    write(f"{folder}/neighbour", b"stays")
    assert volume.publish_file(f"{folder}/draft", f"{folder}/final")
    assert sorted(volume.names(folder)) == ["final", "neighbour"]


def test_a_folder_is_published_whole_and_the_first_one_stays(folder: str) -> None:
    volume, path = volume_of(folder), f"{folder}/out"
    for content in (b"first", b"second"):
        with publishing_folder(path) as private:
            write(f"{private}/a", content)
            write(f"{private}/sub/b", content)
            if content == b"first":
                assert volume.published_folder(path) is None
    published = volume.published_folder(path)
    assert published is not None
    assert volume.read(f"{published}/a") == volume.read(f"{published}/sub/b") == b"first"
    assert sorted(volume.names(published)) == ["a", "sub"]
    assert visible(folder) == ["out"]


def test_removing_a_published_folder_removes_its_files_too(folder: str) -> None:
    volume = volume_of(folder)
    for path in (f"{folder}/out", f"{folder}/deep/out"):
        with publishing_folder(path) as private:
            write(f"{private}/a", b"1")
        volume.remove(f"{folder}/{path.removeprefix(folder + '/').split('/')[0]}")
        assert volume.names(folder) == []


def test_a_memory_folder_is_published_by_a_pointer_to_where_it_was_written(memory_folder: str) -> None:
    volume, path = volume_of(memory_folder), f"{memory_folder}/out"
    with publishing_folder(path) as private:
        write(f"{private}/a", b"1")
    assert volume.published_folder(path) == private
    assert volume.read(f"{private}/a") == b"1"
    assert volume.names(path) != ["a"]


def test_a_memory_folder_that_lies_elsewhere_is_not_published(memory_folder: str) -> None:
    with pytest.raises(ValueError, match="not beside"):
        volume_of(memory_folder).publish_folder("memory://elsewhere/x", f"{memory_folder}/out")


def test_a_file_at_the_root_of_memory_is_published(memory_folder: str) -> None:
    path = memory_folder + ".bin"
    with publishing(path) as private:
        write(private, b"1")
    try:
        assert volume_of(path).read(path) == b"1"
        assert not [name for name in volume_of(path).names("memory://") if name.startswith(PRIVATE_MARK)]
    finally:
        volume_of(path).remove(path)


def test_a_publisher_that_is_killed_leaves_nothing_that_a_reader_sees(tmp_path: Path) -> None:
    kill(start(PUBLISH_HALF, str(tmp_path)))
    assert visible(str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        expand(f"{tmp_path}/**/*.bin")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_killed_process_has_made_visible_is_whole(tmp_path: Path, seed: int) -> None:
    process = start(PUBLISH_FOR_EVER, str(tmp_path))
    time.sleep(random.Random(seed).uniform(0, 0.1))
    kill(process)
    for name in visible(str(tmp_path)):
        path = tmp_path / name
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            content = file.read_bytes()
            assert len(content) == 300_000
            assert len(set(content)) == 1
        assert not path.is_dir() or len(os.listdir(path)) == 2
    assert {"published-0", "created-0", "replaced", "folder-0"} <= set(visible(str(tmp_path)))


def test_links_in_a_folder_that_point_nowhere_do_not_keep_it_from_being_published(tmp_path: Path) -> None:
    with publishing_folder(f"{tmp_path}/out") as private:
        os.symlink("/nowhere", f"{private}/link")
    assert os.listdir(tmp_path / "out") == ["link"]


def test_removing_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    write(f"{tmp_path}/real/a", b"1")
    os.symlink(tmp_path / "real", tmp_path / "link")
    volume_of(str(tmp_path)).remove(f"{tmp_path}/link")
    assert volume_of(str(tmp_path)).read(f"{tmp_path}/real/a") == b"1"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="wants /dev/full, which Linux has")
def test_a_full_disk_is_recognised_through_whatever_wraps_it() -> None:
    with pytest.raises(OSError) as caught, pa.OSFile("/dev/full", "wb") as file:
        file.write(b"1" * 100_000)
    assert is_no_space(caught.value)
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as cause:
            raise RuntimeError("step failed") from cause
    except RuntimeError as error:
        assert is_no_space(error)
    assert not is_no_space(OSError(errno.EACCES, "denied"))
    assert not is_no_space(ValueError("full"))


def test_an_unknown_protocol_is_an_error_that_names_the_known_ones_until_it_is_registered() -> None:
    with pytest.raises(ValueError, match=r"newstore://.*file, gs, memory, s3"):
        volume_of("newstore://a/b")
    register_volume("newstore2", MemoryVolume)
    assert isinstance(volume_of("newstore2://a"), MemoryVolume)


def test_only_local_disk_is_shared_between_processes() -> None:
    assert volume_of("/data").is_shared()
    assert not volume_of("memory://data").is_shared()
