"""Calls of a pool."""

import time


def rest(key: int) -> int:
    """Takes so many hundredths of a second."""
    time.sleep(key / 100)
    return key


def fail(key: int) -> int:
    raise ValueError(key)
