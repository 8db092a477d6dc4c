"""Processes by name: a fork, a pid used again and another machine are told apart."""

import os
import signal
import subprocess
import sys

import msgspec

from ponente.cluster.process import is_gone, signal_name, this_host, this_process


def test_this_process_has_one_name_and_is_not_gone() -> None:
    assert this_process() == this_process()
    assert this_process().pid == os.getpid()
    assert not is_gone(this_process())


FORK = """
import os, sys
from ponente.cluster.process import this_process
before = this_process().token
child = os.fork()
if child:
    os.waitpid(child, 0)  # one after the other, or their lines mix
print(child == 0, os.getpid() == this_process().pid, before == this_process().token, flush=True)
"""


def test_a_fork_has_a_name_of_its_own() -> None:
    ended = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines() == ["True True False", "False True True"]


def test_a_process_that_ended_is_gone_even_before_it_was_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = msgspec.structs.replace(this_process(), pid=child.pid, started=started(child.pid))
    assert not is_gone(name)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the process table
    assert is_gone(name)
    child.wait()
    assert is_gone(name)


def started(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])


def test_a_pid_that_was_used_again_is_another_process() -> None:
    parent = msgspec.structs.replace(this_process(), pid=os.getppid(), started=started(os.getppid()))
    assert not is_gone(parent)
    assert is_gone(msgspec.structs.replace(parent, started=parent.started - 1))
    assert is_gone(msgspec.structs.replace(this_process(), token="of an earlier process of this pid"))


def test_what_runs_on_another_machine_cannot_be_known_to_be_gone() -> None:
    assert not is_gone(msgspec.structs.replace(this_process(), host="elsewhere", pid=2**22 + 1))
    assert is_gone(msgspec.structs.replace(this_process(), host=this_host(), pid=2**22 + 1))


def test_signals_have_names() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(39) == "signal 39"
