"""The numbered log: of all who race for a number exactly one has it, and nothing else in the folder disturbs it."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ponente.store.log import NumberedLog
from ponente.store.volume import volume_of

RACE = """
import json, sys
from ponente.store.log import NumberedLog
folder, mine = sys.argv[1:]
log = NumberedLog(folder)
print("ready", flush=True)
sys.stdin.readline()
won = []
while (last := log.last_number()) < 120:
    if log.append(last, mine.encode()):
        won.append(last + 1)
print(json.dumps(won))
"""


def test_an_empty_log_ends_at_zero_and_entries_are_numbered_from_one(folder: str) -> None:
    log = NumberedLog(folder)
    assert log.last_number() == 0
    assert log.append(0, b"first") and log.append(1, b"second")
    assert log.last_number() == 2
    assert (log.read(1), log.read(2)) == (b"first", b"second")


def test_who_saw_an_older_end_cannot_append_and_changes_nothing(folder: str) -> None:
    log = NumberedLog(folder)
    log.append(0, b"first")
    assert not log.append(0, b"late")
    assert (log.last_number(), log.read(1)) == (1, b"first")


def test_of_many_threads_one_wins_each_number(folder: str) -> None:
    log = NumberedLog(folder)
    start = threading.Barrier(8)

    def race(mine: int) -> list[int]:
        start.wait()
        return [number for number in range(60) if log.append(number, str(mine).encode())]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert sorted(number for numbers in won for number in numbers) == list(range(60))
    for mine, numbers in enumerate(won):
        assert all(log.read(number + 1) == str(mine).encode() for number in numbers)


def test_of_many_processes_one_wins_each_number(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), str(mine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mine in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sorted(number for numbers in won for number in numbers) == list(range(1, 121))
    log = NumberedLog(str(tmp_path))
    for mine, numbers in enumerate(won):
        assert all(log.read(number) == str(mine).encode() for number in numbers)


def test_leftovers_and_strangers_in_the_folder_are_no_entries(folder: str) -> None:
    log = NumberedLog(folder)
    log.append(0, b"first")
    for name in (".part-0123456789ab", ".log.x.json", ".log.000009.json.bak", ".log.000009", "000009.json", ".logs"):
        volume_of(folder).create(f"{folder}/{name}", b"stranger")
    volume_of(folder).make_folder(f"{folder}/output-7")
    assert log.last_number() == 1
    assert log.append(1, b"second")


def test_two_logs_of_other_names_share_a_folder(folder: str) -> None:
    one, other = NumberedLog(folder), NumberedLog(folder, ".other.")
    one.append(0, b"one")
    assert other.last_number() == 0
    assert other.append(0, b"other") and one.read(1) == b"one"


def test_numbers_go_on_beyond_six_digits(folder: str) -> None:
    log = NumberedLog(folder)
    log.append(999_999, b"large")
    assert log.last_number() == 1_000_000
    assert log.read(1_000_000) == b"large"


def test_a_missing_entry_is_a_missing_file(folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        NumberedLog(folder).read(1)
