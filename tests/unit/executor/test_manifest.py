"""The manifest of a run: who, when, from which code, with which arguments, and all its steps."""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import winds as winds_script
from winds import winds

from ponente.cluster import CpuOnly
from ponente.cluster.process import this_process
from ponente.executor import ExecutorStep
from ponente.executor.graph import build_graph
from ponente.executor.manifest import GitLookup, History, Manifest, Runs, new_run_name
from ponente.executor.outcome import RunOutcome

Runner = Callable[..., RunOutcome]


def newest(prefix: str) -> Manifest:
    manifest = Runs(prefix).manifest(Runs(prefix).names()[0])
    assert manifest is not None
    return manifest


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    ended = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def test_a_manifest_says_who_when_and_what(run: Runner, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--prefix", prefix])
    before = time.time()
    steps = winds()
    described = ExecutorStep(
        name="described", fn=winds_script.blow, config=steps[0].config, description="why", resources=CpuOnly(num_cpus=2)
    )
    run(*steps, described, description="The experiment.")
    manifest = newest(prefix)
    assert manifest.who == f"{getpass.getuser()}@{socket.gethostname()}"
    assert before <= manifest.time <= time.time()
    assert manifest.driver == this_process()
    assert manifest.argv == ["experiment.py", "--prefix", prefix]
    assert manifest.description == "The experiment."
    graph = build_graph([*steps, described])
    assert [step.folder_name for step in manifest.steps] == [node.folder_name for node in graph.nodes]
    assert [step.identity for step in manifest.steps] == [node.identity for node in graph.nodes]
    assert manifest.steps[1].parents == [graph.nodes[0].identity]
    assert [step.state for step in manifest.steps] == ["run"] * 4 and manifest.steps[0].why == "new"
    assert (manifest.steps[3].description, manifest.steps[3].resources) == (
        "why",
        "CpuOnly(num_cpus=2, memory=None, host_count=1)",
    )


def test_how_a_run_ended_is_stored_beside_its_manifest(run: Runner, prefix: str) -> None:
    run(*winds(ponente=-1))
    result = Runs(prefix).result(Runs(prefix).names()[0])
    assert result is not None
    assert result.exit_code == 1
    counts = {state: len(names) for state, names in result.states.items() if names}
    assert counts == {"done": 1, "failed": 1, "held": 1}


def test_hits_and_pins_are_recorded_with_where_they_lie(run: Runner, prefix: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    step = winds()[0]
    run(step)
    pinned = ExecutorStep(name="pinned", fn=winds_script.blow, override_output_path=str(tmp_path / "data"))
    outcome = run(step, pinned)
    hit, pin = newest(prefix).steps
    assert (hit.state, hit.output, hit.pinned) == ("hit", outcome.path(step), False)
    assert (pin.state, pin.output, pin.pinned) == ("hit", str(tmp_path / "data"), True)


def test_the_payload_that_was_hashed_is_stored_whole(run: Runner, prefix: str) -> None:
    steps = winds(levante=7)
    run(*steps)
    for node in build_graph(steps).nodes:
        record = json.loads((Path(prefix) / node.folder_name / ".payload.json").read_text())
        assert (record["identity"], record["payload"]) == (node.identity, node.payload)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of the winds."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(winds_script.__file__, folder / "winds.py")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "winds")
    return folder


def run_as_program(script: Path, prefix: str) -> Manifest:
    command = [sys.executable, str(script), "--prefix", prefix, "--launcher", "driver"]
    subprocess.run(command, capture_output=True, check=True, timeout=60, cwd="/")
    return newest(prefix)


def test_a_manifest_has_the_commit_of_the_script_and_whether_it_was_changed(repository: Path, prefix: str) -> None:
    clean = run_as_program(repository / "winds.py", prefix)
    commit = git(repository, "rev-parse", "HEAD")
    assert clean.git is not None and (clean.git.commit, clean.git.dirty) == (commit, False)
    (repository / "new.txt").touch()
    dirty = run_as_program(repository / "winds.py", prefix)
    assert dirty.git is not None and (dirty.git.commit, dirty.git.dirty) == (commit, True)
    assert dirty.description == "The winds of the west.\n\nThree of them."
    assert dirty.argv[0] == str(repository / "winds.py")


def test_outside_a_repository_and_without_git_a_manifest_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with GitLookup(str(tmp_path)) as lookup:
        assert lookup.result() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    with GitLookup(str(tmp_path)) as lookup:
        assert lookup.result() is None


def test_asking_git_writes_nothing_into_the_repository(repository: Path) -> None:
    os.utime(repository / "winds.py")  # git would like to refresh its index
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    with GitLookup(str(repository)) as lookup:
        assert lookup.result() is not None
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


def test_names_of_runs_sort_by_time() -> None:
    names = []
    for _ in range(5):
        names.append(new_run_name())
        time.sleep(0.002)
    assert names == sorted(names)
    assert all(re.fullmatch(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{4}", name) for name in names)


def test_history_finds_the_last_run_in_which_a_step_was_otherwise(run: Runner, prefix: str) -> None:
    def identity(force: int) -> str:
        return build_graph([winds(levante=force)[0]]).nodes[0].identity

    for force in (1, 2, 1):
        run(winds(levante=force)[0])
    newest_run, middle, _ = Runs(prefix).names()
    history = History(prefix)
    assert history.previous("winds/levante", identity(1)) == (middle, identity(2))
    assert history.previous("winds/levante", identity(2)) == (newest_run, identity(1))
    assert history.previous("winds/levante", identity(3)) == (newest_run, identity(1))
    assert history.previous("unknown", identity(1)) is None


def test_a_run_without_a_manifest_yet_is_skipped(run: Runner, prefix: str) -> None:
    run(*winds())
    (Path(prefix) / ".runs" / "99999999-000000-000-ffff").mkdir()
    found: list[Any] = list(Runs(prefix).manifests())
    assert [manifest.run for manifest in found] == Runs(prefix).names()[1:]
