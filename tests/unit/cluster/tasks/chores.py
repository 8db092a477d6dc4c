"""Small tasks for launchers and sharded maps."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ponente.cluster.workers import report_counts
from ponente.config.errors import RefusedError


def answer(job: Any) -> int:
    """Writes what it was given to a file; ends with the exit code it was told."""
    told = repr((job["value"], os.environ.get("CHORE"), os.getpid() == job["driver"]))
    Path(job["path"]).write_text(told)
    return int(job["code"])


def speak(job: Any) -> int:
    """Prints and logs many lines."""
    for number in range(job["lines"]):
        print(f"line {number} of {job['text']}")
    print("error line", file=sys.stderr)
    logging.getLogger("chores").warning("logged %s", job["text"])
    return 0


def write(job: Any) -> int:
    """Writes a text to standard output as it is."""
    os.write(1, job["text"].encode())
    return 0


def explode(job: Any) -> int:
    """Raises."""
    raise RuntimeError("boom")


def die(job: Any) -> int:
    """Ends as native code does when it crashes."""
    os.abort()


def length(shard: str) -> int:
    """A shard's length; nothing is written."""
    return len(shard)


def shout(shard: str, path: str) -> str:
    """Writes one file."""
    Path(path).write_text(shard.upper())
    return shard[0]


def unfold(shard: str, path: str) -> None:
    """Writes a folder with a file a letter."""
    os.mkdir(path)
    for letter in shard:
        (Path(path) / letter).touch()


def keep_silent(shard: str, path: str) -> None:
    """Writes nothing."""


def leave_a_trace(shard: dict[str, str]) -> None:
    """Notes that it was run."""
    with open(shard["trace"], "a") as file:
        file.write(f"{shard['name']}\n")


def leave_a_trace_beside(shard: str) -> None:
    """Notes beside the file that it names that it was run."""
    leave_a_trace({"trace": str(Path(shard).parent / "trace"), "name": Path(shard).name})


def give_back(shard: Any) -> Any:
    """What it was given."""
    return shard


def give_an_object(shard: Any) -> Any:
    """Something that is no JSON."""
    return object()


def refuse_bora(shard: str) -> str:
    """Speaks to the user about one shard."""
    report_counts(seen=1)
    if shard == "bora":
        raise RefusedError("found bora; needed another wind. Wait.")
    return shard


def count_letters(shard: str) -> int:
    """Counts aloud."""
    for number in range(1, len(shard) + 1):
        report_counts(letters=number, words=1)
    return len(shard)


_remembered: list[str] = []


def remember_a_wind() -> None:
    """Puts something into this module that processes forked later have."""
    _remembered.append("tramontana")


def remembered_wind(shard: str) -> str:
    """What was remembered before this process was forked."""
    return _remembered[-1]


def kill_myself() -> None:
    """Ends as if there were no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_myself_on_bora(shard: str) -> str:
    """The same, for one shard."""
    if shard == "bora":
        kill_myself()
    return shard
