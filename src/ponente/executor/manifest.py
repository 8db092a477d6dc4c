"""The manifest of a run: who ran what, when, from which code, with all steps; and the history made of them.

`{prefix}/.runs/{run}/manifest.json` is written when a run starts and never changed; `result.json` when it ends. What
became of each step is in the step's own log.
"""

import contextlib
import getpass
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ponente.cluster.process import ProcessName
from ponente.executor.records import FORMAT
from ponente.store.formats import decode_record
from ponente.store.paths import below
from ponente.store.volume import volume_of

_LOOK_BACK_RUNS = 100


class ManifestStep(msgspec.Struct, frozen=True):
    """A step as the plan saw it when the run started."""

    name: str
    identity: str
    state: str
    why: str
    parents: list[str] = []
    watched: list[str] = []
    output: str | None = None  # where it was known: a hit, a pin
    pinned: bool = False
    description: str | None = None
    resources: str | None = None

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.identity[:8]}"


class GitState(msgspec.Struct, frozen=True):
    """The commit that the code was at, and whether the work tree differed from it."""

    commit: str
    dirty: bool


class Manifest(msgspec.Struct, frozen=True):
    """A run's manifest."""

    run: str
    time: float
    who: str
    driver: ProcessName
    argv: list[str]
    description: str | None
    git: GitState | None
    steps: list[ManifestStep]
    format: int = FORMAT


class RunResult(msgspec.Struct, frozen=True):
    """How a run ended: the exit code and the folder names of its steps by what became of them."""

    time: float
    exit_code: int
    states: dict[str, list[str]]
    format: int = FORMAT


def new_run_name() -> str:
    """A name that sorts by time, to the millisecond: 20261115-142501-042-3fa9."""
    now = time.time()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{int(now * 1000) % 1000:03d}-{secrets.token_hex(2)}"


def who_runs() -> str:
    """user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class GitLookup:
    """Asks git about a folder, in the background, so that planning need not wait for it; `with` ends it in any case."""

    def __init__(self, folder: str) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
            with contextlib.suppress(OSError):  # no git on this machine: the manifest says nothing of it
                command = ["git", "--no-optional-locks", "-C", folder, *arguments]
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
                )
                self._processes.append(process)

    def __enter__(self) -> "GitLookup":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                process.communicate()

    def result(self) -> GitState | None:
        """What git said; None where the folder is not under git or git takes too long."""
        answers = []
        for process in self._processes:
            try:
                answers.append(process.communicate(timeout=10)[0].decode().strip())
            except subprocess.TimeoutExpired:
                return None
        if len(answers) != 2 or any(process.returncode != 0 for process in self._processes):
            return None
        return GitState(commit=answers[0], dirty=bool(answers[1]))


@dataclass(frozen=True)
class Runs:
    """The runs under a prefix."""

    prefix: str

    def _path(self, run: str, name: str) -> str:
        return below(self.prefix, f".runs/{run}/{name}")

    def names(self) -> list[str]:
        """All runs, newest first."""
        folder = below(self.prefix, ".runs")
        return sorted((name for name in volume_of(folder).names(folder) if not name.startswith(".")), reverse=True)

    def write_manifest(self, manifest: Manifest) -> None:
        path = self._path(manifest.run, "manifest.json")
        volume_of(path).create(path, msgspec.json.encode(manifest))

    def write_result(self, run: str, result: RunResult) -> None:
        path = self._path(run, "result.json")
        volume_of(path).create(path, msgspec.json.encode(result))

    def manifest(self, run: str) -> Manifest | None:
        """A run's manifest; None if it has none (yet)."""
        manifest: Manifest | None = self._read(run, "manifest.json", Manifest)
        return manifest

    def result(self, run: str) -> RunResult | None:
        """How a run ended; None while it has not (or if its driver was killed)."""
        result: RunResult | None = self._read(run, "result.json", RunResult)
        return result

    def _read(self, run: str, name: str, kind: Any) -> Any:
        path = self._path(run, name)
        try:
            data = volume_of(path).read(path)
        except FileNotFoundError:
            return None
        return decode_record(path, data, msgspec.json.Decoder(kind).decode, FORMAT)

    def manifests(self) -> Iterator[Manifest]:
        """Manifests, newest first, as far back as anybody looks."""
        for run in self.names()[:_LOOK_BACK_RUNS]:
            manifest = self.manifest(run)
            if manifest is not None:
                yield manifest


class History:
    """Which identity each step name had in earlier runs, read only as far back as asked."""

    def __init__(self, prefix: str) -> None:
        self._manifests = Runs(prefix).manifests()
        self._read: list[tuple[str, dict[str, list[str]]]] = []

    def _runs(self) -> Iterator[tuple[str, dict[str, list[str]]]]:
        yield from self._read
        for manifest in self._manifests:
            by_name: dict[str, list[str]] = {}
            for step in manifest.steps:
                by_name.setdefault(step.name, []).append(step.identity)
            self._read.append((manifest.run, by_name))
            yield self._read[-1]

    def previous(self, name: str, identity: str) -> tuple[str, str] | None:
        """(run, identity): the last run in which a step of this name had another identity."""
        for run, by_name in self._runs():
            others = [known for known in by_name.get(name, []) if known != identity]
            if others:
                return run, others[-1]
        return None
