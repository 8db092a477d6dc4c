import os
import platform
import subprocess
import sys

import pytest

from ponente.train.memory import has_only_cpu


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="wants glibc, whose malloc it is about")
def test_memory_that_was_freed_is_taken_again_without_page_faults() -> None:
    script = """
import ctypes
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from ponente.train import memory

libc = ctypes.CDLL(None)  # NumPy would ask for huge pages, of which 300 MB have few
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]

def faults(_):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(300 << 20)
    libc.memset(block, 1, 300 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

memory.machine_memory = lambda: (8 if sys.argv[1] == "small" else 16) << 30
if sys.argv[1] != "default":
    memory.keep_memory()
with ThreadPoolExecutor(1) as thread:
    print(list(thread.map(faults, range(3)))[-1])
"""

    def faults(mode: str) -> int:
        command = [sys.executable, "-c", script, mode]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert faults("keep") < 1000 < 50_000 < faults("default")  # of 76,800 pages
    assert faults("small") > 50_000  # what is kept might be too much for a machine with little memory


@pytest.mark.parametrize(("platforms", "expected"), [("cpu", True), ("cuda", False), ("cuda,cpu", False)])
def test_the_platform_that_is_asked_for_decides(
    platforms: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert has_only_cpu() is expected


@pytest.mark.parametrize("command", ["train", "eval"])
def test_commands_that_compute_keep_memory_before_all_else(command: str) -> None:
    script = """
import sys
import threading
import ponente.train.memory

def report():
    print("jax" in sys.modules, "numpy" in sys.modules, threading.active_count())
    sys.exit(7)

ponente.train.memory.keep_memory = report
from ponente.cli import main
main(sys.argv[1:])
"""
    call = [sys.executable, "-c", script, command, "--config_path", "config.yaml"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "False False 1\n"), done.stderr
