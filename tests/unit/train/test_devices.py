import os
import subprocess
import sys

import pytest

from ponente.train.devices import describe_devices, prepare_devices
from ponente.train.trainer import TrainerConfig


@pytest.mark.parametrize(("is_deterministic", "times"), [(True, 1), (False, 0)])
def test_deterministic_runs_ask_xla_for_it(is_deterministic: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    for _ in range(2):
        prepare_devices(TrainerConfig(deterministic=is_deterministic))
    assert os.environ["XLA_FLAGS"].count("--xla_gpu_deterministic_ops=true") == times
    assert "--xla_force_host_platform_device_count=8" in os.environ["XLA_FLAGS"]


def test_devices_are_told_in_words() -> None:
    assert describe_devices().endswith("cpu")


def test_memory_that_was_freed_is_taken_again_without_page_faults() -> None:
    script = """
import resource
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from ponente.train.devices import keep_memory

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
