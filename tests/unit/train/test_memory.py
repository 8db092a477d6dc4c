import subprocess
import sys

import pytest

from ponente.train.memory import has_only_cpu


def test_memory_that_was_freed_is_taken_again_without_page_faults() -> None:
    script = """
import resource
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from ponente.train.memory import keep_memory

def faults(_):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(1 << 26, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_memory()
with ThreadPoolExecutor(1) as thread:
    print(list(thread.map(faults, range(3)))[-1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # of 16,384 pages


@pytest.mark.parametrize(("platforms", "expected"), [("cpu", True), ("cuda", False), ("cuda,cpu", False)])
def test_the_platform_that_is_asked_for_decides(
    platforms: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert has_only_cpu() is expected
