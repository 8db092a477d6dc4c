"""Traces: what steps and shards leave outside the prefix, to be counted by the tests. Not part of any identity."""

import os
import time
from pathlib import Path


def folder() -> Path:
    return Path(os.environ["PONENTE_FAULT_TRACE"])


def leave(name: str) -> int:
    """Adds one byte to a trace; returns how many it has now."""
    with (folder() / name).open("ab") as file:
        file.write(b".")
    return (folder() / name).stat().st_size


def take(name: str) -> bool:
    """Removes a trace; True for the one that removed it."""
    try:
        (folder() / name).unlink()
    except FileNotFoundError:
        return False
    return True


def await_one(name: str) -> None:
    """Waits until a trace is there."""
    while not (folder() / name).exists():
        time.sleep(0.005)
