"""Memory of a process that computes on the CPU: kept when it is freed, because the next step takes as much again.

Imports nothing heavy, because it must come before all threads.
"""

import contextlib
import ctypes
import importlib.util
import os
import pkgutil
import platform
from importlib.metadata import entry_points
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's mallopt
_LARGEST_KEPT = 1 << 30
_NEEDED_MEMORY = 16 << 30  # for up to five of the largest blocks may be kept


def keep_memory() -> None:
    """Makes a process that will compute on the CPU keep blocks that it frees, where there is glibc and memory enough.

    By default glibc gives large blocks back, and the next step pays a page fault for every 4 KiB of them: a sixth of
    the time of a small model's step. There must be one arena, because those of threads hold no large block, and their
    number is fixed when the second thread asks for memory: so a command calls this first of all.
    """
    if has_only_cpu() and platform.libc_ver()[0] == "glibc" and machine_memory() >= _NEEDED_MEMORY:
        libc = ctypes.CDLL(None)
        if libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT):  # older ones refuse so much, and then the rest would harm
            libc.mallopt(_M_TRIM_THRESHOLD, -1)
            libc.mallopt(_M_ARENA_MAX, 1)


def machine_memory() -> int:
    """Bytes of memory that the machine has, or as many as the container may use."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
            found = min(found, int(Path(file).read_text()))
    return found


def has_only_cpu() -> bool:
    """Whether JAX will run on the CPU, told without importing it: nothing else is asked for, or nothing installed."""
    if asked := os.environ.get("JAX_PLATFORMS"):
        return asked == "cpu"
    plugins = importlib.util.find_spec("jax_plugins")
    found = [] if plugins is None else pkgutil.iter_modules(plugins.submodule_search_locations)
    return not any((*found, *entry_points(group="jax_plugins"), importlib.util.find_spec("libtpu")))
