"""Memory that was freed goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
from ponente.cluster.memory import return_free_memory, use_one_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

use_one_heap()
pieces = [bytearray(1000) for _ in range(200_000)]
last = bytearray(1000)  # keeps the end of the heap in use
full = resident()
del pieces
return_free_memory()
print(full - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of Linux is meant")
def test_freed_memory_is_given_back() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 100_000_000
