"""Steps that behave badly, each in its own way; tests choose among them with --run_only."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.executor import ExecutorStep, Retries, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class UnrulyConfig:
    name: str
    parents: tuple[str, ...] = ()
    output_path: str = this_output_path("done.txt")

    def executed(self) -> int:
        """Tells of an execution; returns which one it is."""
        return traces.leave(f"executed-{self.name}")

    def finish(self) -> None:
        Path(self.output_path).write_text("done\n")


def behave(config: UnrulyConfig) -> None:
    config.executed()
    config.finish()


def abort(config: UnrulyConfig) -> None:
    config.executed()
    os.abort()


def read_nowhere(config: UnrulyConfig) -> None:
    config.executed()
    ctypes.string_at(0)


def die_of_an_unnamed_signal(config: UnrulyConfig) -> None:
    config.executed()
    os.kill(os.getpid(), signal.SIGRTMIN + 5)
    time.sleep(60)


def exit_silently(config: UnrulyConfig) -> None:
    config.executed()
    os._exit(9)


def fail(config: UnrulyConfig) -> None:
    config.executed()
    try:
        _look_up({"known": 1}, "unknown")
    except KeyError as error:
        raise ValueError("the root of all trouble") from error


def _look_up(table: dict[str, int], key: str) -> int:
    return table[key]


def ask_to_be_resumed(config: UnrulyConfig) -> None:
    if config.executed() <= 3:
        sys.exit(75)
    config.finish()


def ask_to_be_resumed_at_once(config: UnrulyConfig) -> None:
    if config.executed() <= 3:
        os._exit(75)
    config.finish()


def be_killed(config: UnrulyConfig) -> None:
    if config.executed() <= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    config.finish()


def be_asked_to_end(config: UnrulyConfig) -> None:
    if config.executed() <= 3:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    config.finish()


def be_killed_always(config: UnrulyConfig) -> None:
    config.executed()
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_helper(config: UnrulyConfig) -> None:
    """Its output stays open in a program that it started and forgot."""
    config.executed()
    subprocess.Popen(["sleep", "600"])
    config.finish()


def leave_a_helper_and_be_killed(config: UnrulyConfig) -> None:
    if config.executed() == 1:
        subprocess.Popen(["sleep", "600"])
        os.kill(os.getpid(), signal.SIGKILL)
    config.finish()


def find_no_space_at_all(config: UnrulyConfig) -> None:
    """The first time the disk is full from here on, for this process."""
    if config.executed() == 1:
        os.write = _write_nothing
        os.write(1, b"")
    config.finish()


def _write_nothing(descriptor: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def step(name: str, fn: object, *parents: ExecutorStep, retries: Retries | None = None, **more: object) -> ExecutorStep:
    config = UnrulyConfig(name=name, parents=parents)
    return ExecutorStep(name=f"unruly/{name}", fn=fn, config=config, retries=retries or Retries(errors=0), **more)


good = step("good", behave)
aborts = step("aborts", abort)
reads_nowhere = step("reads-nowhere", read_nowhere)
unnamed_signal = step("unnamed-signal", die_of_an_unnamed_signal)
exits = step("exits", exit_silently)
fails = step("fails", fail, retries=Retries(errors=2))
child = step("child", behave, fails)
grandchild = step("grandchild", behave, child, good)
crashes = [aborts, reads_nowhere, unnamed_signal, exits]

resumed = step("resumed-by-sys-exit", ask_to_be_resumed)
resumed_at_once = step("resumed-by-exit", ask_to_be_resumed_at_once)
killed = step("resumed-by-kill", be_killed)
asked = step("resumed-by-term", be_asked_to_end)
preempted = [resumed, resumed_at_once, killed, asked]
killed_always = step("always-killed", be_killed_always, retries=Retries(errors=0, preemptions=2))

early_death = {"PYTHONPATH": str(Path(__file__).with_name("early_death"))}
dies_early = step("dies-early", behave, env=early_death)
forgetful = step("forgetful", leave_a_helper)
forgetful_and_killed = step("killed-with-helper", leave_a_helper_and_be_killed)
finds_no_space = step("finds-no-space", find_no_space_at_all)
others = [killed_always, dies_early, forgetful, forgetful_and_killed, finds_no_space]

if __name__ == "__main__":
    executor_main(steps=[*crashes, grandchild, *preempted, *others], description=__doc__)
