"""run.json: how each life of a run was started, from which code, on what. Secrets are masked.

In: what only the trainer knows (config, devices, data orders). Out: one small file in the run's folder, replaced whole;
a run that is resumed adds a life to it. A config is stored with the first life and wherever it changed.
"""

import importlib.metadata
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import ponente
from ponente.store.formats import decode_record
from ponente.store.metrics import json_number
from ponente.store.paths import join
from ponente.store.redaction import Redactor
from ponente.store.volume import volume_of

FORMAT = 1
_NAME = "run.json"
_PACKAGES = ("jax", "jaxlib", "numpy", "tensorstore", "optax", "equinox")
_GIT_SECONDS = 10


class GitState(msgspec.Struct, frozen=True):
    """The commit of a work tree, and whether its files differ from it."""

    folder: str
    commit: str
    dirty: bool


class Life(msgspec.Struct, frozen=True):
    """One start of a run."""

    time: float
    first_step: int
    command: list[str]
    host: str
    pid: int
    git: GitState | None
    versions: dict[str, str]
    devices: str | None
    extra: dict[str, Any]
    config: dict[str, Any] | None  # None: as in the life before


class RunRecord(msgspec.Struct, frozen=True):
    """All lives of a run, in order."""

    run_id: str
    lives: list[Life]
    format: int = FORMAT

    @property
    def config(self) -> dict[str, Any]:
        """The config in force in the last life."""
        return next((life.config for life in reversed(self.lives) if life.config is not None), {})


_decode = msgspec.json.Decoder(RunRecord).decode


def write_run_record(
    folder: str,
    config: Mapping[str, Any],
    *,
    run_id: str,
    first_step: int = 0,
    devices: str | None = None,
    extra: Mapping[str, Any] | None = None,
    redactor: Redactor | None = None,
) -> RunRecord:
    """Adds a life to the record of the run in `folder`, in one process of the run.

    Args:
        config: the whole config as plain values.
        first_step: the step with which this life begins.
        devices: what the run computes on, such as "8 x NVIDIA H200".
        extra: what else should be known later, as plain values, such as the orders of the data.
        redactor: knows the secrets; by default those of this process's environment and arguments.
    """
    clean = redactor or Redactor.of_process(dict(os.environ), sys.argv)
    before = read_run_record(folder)
    stored = _plain(clean.value(config))
    life = Life(
        time=time.time(),
        first_step=first_step,
        command=clean.arguments(sys.argv),
        host=socket.gethostname(),
        pid=os.getpid(),
        git=_git_state(),
        versions=_versions(),
        devices=devices,
        extra=_plain(clean.value(extra or {})),
        config=None if before is not None and before.config == stored else stored,
    )
    record = RunRecord(run_id=run_id, lives=[*(before.lives if before is not None else ()), life])
    path = join(folder, _NAME)
    volume_of(path).replace(path, msgspec.json.format(msgspec.json.encode(record), indent=1))
    return record


def read_run_record(folder: str) -> RunRecord | None:
    """The record of the run in `folder`, if it has one."""
    path = join(folder, _NAME)
    try:
        data = volume_of(path).read(path)
    except FileNotFoundError:
        return None
    return decode_record(path, data, _decode, FORMAT)


def _plain(value: Any) -> Any:
    """`value` with lists for tuples and text for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return json_number(value) if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "ponente": ponente.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_state() -> GitState | None:
    """Of the working folder, else of the folder that ponente was imported from; None where neither is under git."""
    for folder in (os.getcwd(), str(Path(ponente.__file__).parent)):
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain")
        if commit and changes is not None:
            return GitState(folder=folder, commit=commit, dirty=bool(changes))
    return None


def _git(folder: str, *arguments: str) -> str | None:
    """What git says; None where it is missing, fails or takes too long."""
    command = ["git", "--no-optional-locks", "-C", folder, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
