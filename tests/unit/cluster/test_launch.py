"""Launchers: a task gets its job and its variables, its output lands in its log, its end is told."""

import logging
import math
import os
import queue
from pathlib import Path
from typing import Any

import pytest

from ponente.cluster.launch import DriverLauncher, Launcher, Running, SubprocessLauncher, Task
from ponente.store.redaction import Redactor

PATIENCE_SECONDS = 60.0


@pytest.fixture(params=["subprocess", "driver", "threads"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    redactor = Redactor(["planted-secret"])
    launchers: dict[str, Launcher] = {
        "subprocess": SubprocessLauncher(redactor),
        "driver": DriverLauncher(redactor),
        "threads": DriverLauncher(redactor, concurrency=2),
    }
    return launchers[request.param]


def run(launcher: Launcher, entry: str, job: Any, log: Path, **env: str) -> tuple[int, Running]:
    exits: queue.Queue[int] = queue.Queue()
    task = Task(name="chore", entry=f"chores:{entry}", job=job, log_path=str(log), env=env)
    running = launcher.start(task, exits.put)
    return exits.get(timeout=PATIENCE_SECONDS), running


VALUES = {"big": 2**70, "nan": math.nan, "least": -math.inf, "text": "Föhn\ud800", "deep": [[{"a": None}]]}


@pytest.mark.parametrize("code", [0, 3])
def test_a_task_gets_its_job_whole_and_its_exit_code_is_told(launcher: Launcher, code: int, tmp_path: Path) -> None:
    job = {"value": VALUES, "path": str(tmp_path / "answer"), "code": code, "driver": os.getpid()}
    assert run(launcher, "answer", job, tmp_path / "logs" / "x.log")[0] == code
    in_driver = not isinstance(launcher, SubprocessLauncher)
    assert (tmp_path / "answer").read_text() == repr((VALUES, None, in_driver))


@pytest.mark.parametrize("kind", [SubprocessLauncher, DriverLauncher])
def test_variables_reach_the_task_and_go_with_it(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORE", "before")
    job = {"value": 1, "path": str(tmp_path / "answer"), "code": 0, "driver": 0}
    run(kind(Redactor()), "answer", job, tmp_path / "x.log", CHORE="mine")
    assert (tmp_path / "answer").read_text() == "(1, 'mine', False)"
    assert os.environ["CHORE"] == "before"


def test_what_a_process_prints_is_in_its_log_without_secrets_and_its_end_in_the_tail(tmp_path: Path) -> None:
    job = {"lines": 100, "text": "planted-secret"}
    code, running = run(SubprocessLauncher(Redactor(["planted-secret"])), "speak", job, tmp_path / "logs" / "x.log")
    log = (tmp_path / "logs" / "x.log").read_text()
    assert code == 0
    assert log.count("of ***\n") == 100 and "planted" not in log
    assert "error line\n" in log and "WARNING chores: logged ***" in log
    assert "line 99 of ***" in running.tail() and "line 0 of" not in running.tail()


@pytest.mark.parametrize("length", range(65_520, 65_540, 4))
def test_a_secret_in_a_line_without_end_is_not_cut_in_two(length: int, tmp_path: Path) -> None:
    text = "y" * length + " planted-secret and more " + "z" * 70_000
    code, _ = run(SubprocessLauncher(Redactor(["planted-secret"])), "write", {"text": text}, tmp_path / "x.log")
    assert code == 0
    assert (tmp_path / "x.log").read_text() == text.replace("planted-secret", "***")


def test_what_a_task_logs_in_the_drivers_process_is_in_its_log(tmp_path: Path) -> None:
    run(
        DriverLauncher(Redactor(["planted-secret"])),
        "speak",
        {"lines": 0, "text": "planted-secret"},
        tmp_path / "x.log",
    )
    logging.getLogger("elsewhere").warning("not the task's")
    assert "WARNING chores: logged ***\n" in (tmp_path / "x.log").read_text()
    assert "elsewhere" not in (tmp_path / "x.log").read_text()


def test_a_task_that_raises_or_cannot_be_found_ends_with_a_code(launcher: Launcher, tmp_path: Path) -> None:
    assert run(launcher, "explode", {}, tmp_path / "x.log")[0] == 1
    assert run(launcher, "nowhere", {}, tmp_path / "y.log")[0] == 1


def test_a_crash_of_native_code_is_told_as_a_signal(tmp_path: Path) -> None:
    assert run(SubprocessLauncher(Redactor()), "die", {}, tmp_path / "x.log")[0] == -6
