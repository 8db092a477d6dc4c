"""What the fault tests share: scripts run as programs, their processes found by a mark, logs and outputs read back.

A site is a prefix, a folder outside of it where steps leave traces of what they did, and a mark that every process
started there carries in its environment, so that what outlives its driver can be seen.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import fsspec
import pytest

from ponente.executor import ExecutorOptions, ExecutorStep, plan_steps
from ponente.executor.graph import build_graph
from ponente.executor.plan import State
from ponente.executor.records import Claim, Commit, Entry, Release, StepFolder
from ponente.store.paths import PRIVATE_MARK

MARK = "PONENTE_FAULT_MARK"
TRACE = "PONENTE_FAULT_TRACE"  # the folder of traces; graphs read it, identities do not
SOAK = "PONENTE_SOAK"  # set by soak.py: the long version of each test that has one
NOTES = "PONENTE_SOAK_NOTES"  # set by soak.py: takes a line of JSON a fault
PATIENCE_SECONDS = 120.0  # how long to wait for what must happen; nothing is measured against it


def seeds(rounds: int, *, soak: int) -> range:
    """The seeds of a test that is repeated: `rounds` of them, more in a soak."""
    return range(soak if os.environ.get(SOAK) else rounds)


def note(fault: str, *, phase: str, **details: Any) -> None:
    """Tells the soak's summary of a fault, and where it struck."""
    if path := os.environ.get(NOTES):
        with open(path, "a") as notes:
            notes.write(json.dumps({"fault": fault, "phase": phase, **details}) + "\n")


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until `condition` gives something true, and returns it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return found


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run made, by step, and how long it took."""

    outputs: dict[str, dict[str, bytes]]
    seconds: float


class Program:
    """A script that is running, in a process group of its own."""

    def __init__(self, command: list[str], env: dict[str, str], outputs: Path) -> None:
        outputs.mkdir(parents=True)
        self._out, self._err = outputs / "out", outputs / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        self._process.send_signal(signal_number)

    def kill_group(self, signal_number: int) -> None:
        """What a terminal does on Ctrl-C."""
        os.killpg(self._process.pid, signal_number)

    def wait(self) -> Ended:
        code = self._process.wait(timeout=PATIENCE_SECONDS * 2)
        return Ended(code, self._out.read_text(), self._err.read_text())


class Site:
    """Where a script runs."""

    def __init__(self, script: Path, root: Path, prefix: Path | str | None = None) -> None:
        self.script = script
        self.root = root
        self.prefix = prefix or root / "prefix"  # a URL, where the prefix is in a bucket
        self.trace = root / "trace"
        self.trace.mkdir(parents=True)
        self._mark = secrets.token_hex(16)
        self._started = 0

    @property
    def env(self) -> dict[str, str]:
        return {MARK: self._mark, TRACE: str(self.trace)}

    def start(self, *flags: str, **env: str) -> Program:
        """Starts the script as a user would."""
        self._started += 1
        command = [sys.executable, str(self.script), "--prefix", str(self.prefix), *flags]
        return Program(command, {**os.environ, **self.env, **env}, self.root / f"program-{self._started}")

    def run(self, *flags: str, **env: str) -> Ended:
        return self.start(*flags, **env).wait()

    # -- processes

    def processes(self) -> list[int]:
        """The living processes that carry this site's mark."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:  # it has ended
                    continue
        return found

    def adopt(self, environ: pytest.MonkeyPatch) -> None:
        """Gives this process's own children this site's mark and traces, for tests that drive a graph themselves."""
        self._started += 1
        for name, value in self.env.items():
            environ.setenv(name, value)

    def expect_no_processes(self) -> None:
        wait_until(lambda: not self.processes(), f"the processes {self.processes()} of {self.root} had ended")

    def kill_everything(self) -> None:
        while self._started and (left := self.processes()):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    # -- traces

    def leave(self, name: str) -> None:
        """Makes a trace that says nothing, for steps that wait for one."""
        (self.trace / name).touch()

    def traces(self, pattern: str = "*") -> dict[str, int]:
        """How often each trace was left."""
        return {path.name: path.stat().st_size for path in sorted(self.trace.glob(pattern))}

    def await_trace(self, name: str) -> None:
        wait_until((self.trace / name).exists, f"a step left {name}")

    # -- records

    def folder(self, step: ExecutorStep) -> StepFolder:
        return StepFolder(str(self.prefix), build_graph([step]).node_of(step).folder_name)

    def entries(self, step: ExecutorStep) -> list[Entry]:
        """The whole log of a step."""
        return entries(self.folder(step))

    def commits(self, step: ExecutorStep) -> list[Commit]:
        return [entry for entry in self.entries(step) if isinstance(entry, Commit)]

    def claims(self, step: ExecutorStep) -> list[Claim]:
        return [entry for entry in self.entries(step) if isinstance(entry, Claim)]

    def releases(self, step: ExecutorStep) -> list[Release]:
        return [entry for entry in self.entries(step) if isinstance(entry, Release)]

    def published(self, step: ExecutorStep) -> dict[str, bytes] | None:
        """All that children of a step would read, by name; None while nothing is committed."""
        folder = self.folder(step)
        commit = folder.last_commit(folder.view())
        if commit is None:
            return None
        files = tree(folder.place(commit))
        for name in commit.objects:
            files |= {f"{name}/{inner}": data for inner, data in tree(folder.place(commit, name)).items()}
        return files

    def expect_only_whole_results(self, target: ExecutorStep, reference: dict[str, dict[str, bytes]]) -> int:
        """Checks that what the logs show is whole, and all that a plan takes as done; returns how many steps are."""
        plan = plan_steps([target], ExecutorOptions(prefix=str(self.prefix)))
        done = 0
        for planned in plan.steps:
            step = planned.node.step
            found = self.published(step)
            assert (planned.state is State.HIT) == (found is not None), f"{step.name}: {planned.state}, {found}"
            assert found is None or found == reference[step.name], f"{step.name} is not what it should be"
            assert len(self.commits(step)) <= 1, f"{step.name} was committed twice"
            for name, data in tree(planned.folder.state(planned.view)).items():
                assert reference[step.name].get(name, data) == data, f"{name} in the state of {step.name} is torn"
            done += found is not None
        expect_whole_records(self.prefix)
        return done


class Sites(Protocol):
    """Makes sites that are cleaned up after the test."""

    def __call__(self, script: str, name: str = "site", prefix: Path | None = None) -> Site: ...


def entries(folder: StepFolder) -> list[Entry]:
    """The whole log of a step."""
    return [folder.entry(number) for number in range(1, folder.log.last_number() + 1)]


def tree(folder: str | Path) -> dict[str, bytes]:
    """The files below a folder that a reader looks at: dot-named ones are records and unfinished work."""
    return {name: data() for name, data in _files(folder).items() if not re.search(r"(^|/)\.", name)}


def _files(folder: str | Path) -> dict[str, Callable[[], bytes]]:
    """All files below a folder, on a disk or in a bucket, by their names from there."""
    if "://" not in str(folder):
        found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes for path in found}
    filesystem, inner = fsspec.core.url_to_fs(str(folder))
    return {
        name[len(inner) + 1 :]: partial(filesystem.cat_file, name)
        for name in filesystem.find(inner)
        if name.startswith(f"{inner}/")
    }


def expect_whole_records(prefix: Path | str) -> None:
    """Checks that every record, finished shard and checkpoint that is not private any more can be read.

    An output folder is an attempt's own until a commit names it; what is in those that one names is compared whole.
    """
    for name, data in _files(prefix).items():
        if name.endswith(".json") and not any(part.startswith((PRIVATE_MARK, "output-")) for part in name.split("/")):
            try:
                json.loads(data())
            except ValueError as error:
                raise AssertionError(f"{name} is torn: {error}") from error
