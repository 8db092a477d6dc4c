"""Keeping the memory of long-lived workers flat: what they free goes back to the system, where there is glibc."""

import ctypes
import sys
from functools import cache
from typing import Any

_ARENA_MAX = -8  # mallopt's M_ARENA_MAX


@cache
def _glibc() -> Any:
    """The C library if it is glibc, and then told to keep one heap instead of one a thread; else None."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.mallopt(_ARENA_MAX, 1)
    return library


def use_one_heap() -> None:
    """Keeps heaps of several threads from growing side by side; call it before much is allocated."""
    _glibc()


def return_free_memory() -> None:
    """Gives freed memory back to the system; a few milliseconds, so between large pieces of work."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)
