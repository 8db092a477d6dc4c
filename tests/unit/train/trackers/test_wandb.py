"""Weights & Biases: against a stand-in for the package, and offline with the real one where it is installed.

The stand-in takes steps in rising order only, from the run's `starting_step` on, as the real one does.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ponente.train.trackers import Histogram, RunInfo, WandbConfig, wandb_run


class FakeRun:
    def __init__(self, starting_step: int = 0) -> None:
        self.starting_step = starting_step
        self.history: dict[int, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}
        self.is_finished = False

    def log(self, data: dict[str, Any], step: int) -> None:
        assert step >= max([self.starting_step, *self.history])
        self.history.setdefault(step, {}).update(data)

    def finish(self) -> None:
        self.is_finished = True


class FakeWandb:
    """The package: `refuses` are the modes in which no run can begin."""

    def __init__(self, run: FakeRun, refuses: tuple[str, ...] = ()) -> None:
        self.asked: list[dict[str, Any]] = []
        self._run = run
        self._refuses = refuses

    def init(self, **asked: Any) -> FakeRun:
        self.asked.append(asked)
        if asked["mode"] in self._refuses:
            raise ConnectionError("no route to host")
        return self._run

    def setup(self) -> SimpleNamespace:
        return SimpleNamespace(settings=SimpleNamespace(api_key=None, base_url="https://api.wandb.ai"))

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def Histogram(self, np_histogram: Any) -> tuple[str, Any]:
        return "histogram", np_histogram


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine may have a key; the tests have none."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def install(monkeypatch: pytest.MonkeyPatch, run: FakeRun, refuses: tuple[str, ...] = ()) -> FakeWandb:
    package = FakeWandb(run, refuses)
    monkeypatch.setattr(wandb_run, "wandb", package)
    return package


def test_metrics_reach_the_run(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = FakeRun()
    install(monkeypatch, theirs)
    tracker = WandbConfig(mode="offline").begin(run)
    tracker.log({"train/loss": 2.0}, 3)
    tracker.log({"eval/loss": 2.5}, 3)
    tracker.log({"grad": Histogram(edges=(0.0, 1.0), counts=(4.0,), sum=1.0, sum_squares=1.0)}, 4)
    tracker.log_summary({"parameter_count": 9})
    tracker.finish()
    assert theirs.history == {
        3: {"train/loss": 2.0, "eval/loss": 2.5},
        4: {"grad": ("histogram", ([4.0], [0.0, 1.0]))},
    }
    assert theirs.summary == {"parameter_count": 9}
    assert theirs.is_finished


def test_a_resumed_run_is_the_same_run_and_each_step_stands_once(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    theirs = FakeRun(starting_step=15)  # W&B has the steps up to 14
    package = install(monkeypatch, theirs)
    tracker = WandbConfig().begin(replace(run, first_step=10))
    for step in range(10, 20):
        tracker.log({"train/loss": 2.0}, step)
    assert list(theirs.history) == list(range(15, 20))
    assert (package.asked[0]["id"], package.asked[0]["resume"]) == ("winds-1", "allow")


def test_the_keys_of_the_config_reach_the_package(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(monkeypatch, FakeRun())
    config = WandbConfig(entity="e", project="p", name="n", tags=("x", "west"), id="a/b", group="g", mode="offline")
    config.begin(run)
    asked = package.asked[0]
    assert {
        key: asked[key] for key in ("entity", "project", "name", "tags", "id", "group", "mode", "config", "dir")
    } == {
        **{"entity": "e", "project": "p", "name": "n", "tags": ["west", "x"], "id": "a-b", "group": "g"},
        **{"mode": "offline", "config": {"model": {"layers": 2}}, "dir": run.folder},
    }
    assert asked["settings"]["console"] == "off"


@pytest.mark.parametrize(("argument", "is_sent"), [("--seed=1", True), ("--api_key=3f9a0c1d2b3e4f5a6b7c", False)])
def test_a_command_line_with_a_secret_is_not_sent(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, argument: str, is_sent: bool
) -> None:
    package = install(monkeypatch, FakeRun())
    monkeypatch.setattr(sys, "argv", ["train", argument])
    WandbConfig(mode="offline").begin(run)
    assert package.asked[0]["settings"]["x_disable_meta"] is not is_sent


def test_without_a_key_it_is_offline_with_a_warning(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = install(monkeypatch, FakeRun())
    WandbConfig(mode="online").begin(run)
    assert [asked["mode"] for asked in package.asked] == ["offline"]
    assert "WANDB_API_KEY" in caplog.text


def test_a_key_in_netrc_is_a_key(run: RunInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password 0123456789\n")
    netrc.chmod(0o600)
    package = install(monkeypatch, FakeRun())
    WandbConfig().begin(run)
    assert [asked["mode"] for asked in package.asked] == ["online"]


def test_the_mode_of_the_environment_holds_where_the_config_says_nothing(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    package = install(monkeypatch, FakeRun())
    WandbConfig().begin(run)
    WandbConfig(mode="offline").begin(run)
    assert [asked["mode"] for asked in package.asked] == ["disabled", "offline"]
    assert caplog.text == ""


@pytest.mark.parametrize(("refuses", "tried"), [(("online",), 2), (("online", "offline"), 2)])
def test_a_run_that_cannot_begin_is_a_warning(
    run: RunInfo,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuses: tuple[str, ...],
    tried: int,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    theirs = FakeRun()
    package = install(monkeypatch, theirs, refuses)
    tracker = WandbConfig().begin(run)
    tracker.log({"train/loss": 2.0}, 0)
    tracker.finish()
    assert [asked["mode"] for asked in package.asked] == ["online", "offline"]
    assert bool(theirs.history) is ("offline" not in refuses)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(refuses)


def test_without_the_package_there_is_a_warning_and_no_tracker(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wandb_run, "wandb", None)
    tracker = WandbConfig().begin(run)
    tracker.log({"train/loss": 2.0}, 0)
    tracker.finish()
    assert "pip install 'ponente[wandb]'" in caplog.text


@pytest.mark.filterwarnings("default")  # the package's own are not our affair
def test_the_real_package_keeps_a_run_offline(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for first_step in (0, 3):
        tracker = WandbConfig(project="winds").begin(replace(run, first_step=first_step))
        for step in range(first_step, first_step + 5):
            tracker.log({"train/loss": 2.0, "grad": Histogram(edges=(0, 1), counts=(4,), sum=1, sum_squares=1)}, step)
        tracker.log_summary({"parameter_count": 9})
        tracker.finish()
    stored = sorted(Path(run.folder).glob("wandb/offline-run-*/run-winds-1.wandb"))
    assert stored and all(b"train/loss" in path.read_bytes() for path in stored)
