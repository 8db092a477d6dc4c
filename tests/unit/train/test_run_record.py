"""run.json: lives, code, versions; no secrets; a golden record."""

import json
import math
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import ponente
from ponente.store.formats import FormatError
from ponente.train.run_record import read_run_record, write_run_record

GOLDEN = Path(__file__).with_name("golden")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=West", "-c", "user.email=w@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_run_without_a_record_has_none(tmp_path: Path) -> None:
    assert read_run_record(str(tmp_path)) is None


def test_a_record_says_how_the_run_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ponente", "train", "--trainer.seed", "1"])
    config = {"trainer": {"seed": 1}, "optimizer": {"max_grad_norm": math.inf, "betas": (0.9, 0.95)}}
    folder = str(tmp_path / "new")
    write_run_record(folder, config, run_id="winds-1", devices="8 x H200", extra={"orders": ["web", "chat"]})
    record = read_run_record(folder)
    assert record is not None and record.run_id == "winds-1"
    (life,) = record.lives
    assert life.command == ["ponente", "train", "--trainer.seed", "1"]
    assert life.versions["python"] == platform.python_version()
    assert life.versions["ponente"] == ponente.__version__
    assert {"jax", "jaxlib", "numpy", "tensorstore", "optax"} <= set(life.versions)
    assert (life.devices, life.extra, life.first_step) == ("8 x H200", {"orders": ["web", "chat"]}, 0)
    assert life.host and life.time > 1.7e9
    assert record.config == {
        "trainer": {"seed": 1},
        "optimizer": {"max_grad_norm": "Infinity", "betas": [0.9, 0.95]},
    }


def test_a_resume_adds_a_life_and_stores_a_config_only_where_it_changed(tmp_path: Path) -> None:
    for first_step, steps in ((0, 100), (50, 100), (80, 200)):
        write_run_record(str(tmp_path), {"steps": steps}, run_id="winds-1", first_step=first_step)
    record = read_run_record(str(tmp_path))
    assert record is not None
    assert [life.first_step for life in record.lives] == [0, 50, 80]
    assert [life.config for life in record.lives] == [{"steps": 100}, None, {"steps": 200}]
    assert record.config == {"steps": 200}
    assert [life.time for life in record.lives] == sorted(life.time for life in record.lives)


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr(sys, "argv", ["ponente", "train", "--hf_token=wxyz-987654", "--note", "0123456789abcdef"])
    config = {"data": {"api_key": "plain-words-here", "url": "s3://user:pa55word@bucket/x"}}
    write_run_record(str(tmp_path), config, run_id="r", extra={"seen": "0123456789abcdef"})
    text = (tmp_path / "run.json").read_text()
    for secret in ("0123456789abcdef", "wxyz-987654", "plain-words-here", "pa55word"):
        assert secret not in text
    assert "--hf_token=***" in text


def test_the_commit_and_whether_files_differ_from_it_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    git(code, "init", "-q")
    (code / "train.py").write_text("1")
    git(code, "add", "train.py")
    git(code, "commit", "-q", "-m", "one")
    write_run_record(str(tmp_path / "run"), {}, run_id="r")
    (code / "train.py").write_text("2")
    record = write_run_record(str(tmp_path / "run"), {}, run_id="r")
    clean, dirty = (life.git for life in record.lives)
    assert clean is not None and dirty is not None
    assert clean.commit == dirty.commit == git(code, "rev-parse", "HEAD")
    assert (clean.dirty, dirty.dirty) == (False, True)


def test_without_git_nothing_is_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_run_record(str(tmp_path), {}, run_id="r").lives[0].git is None
    assert json.loads((tmp_path / "run.json").read_text())["lives"][0]["git"] is None


def test_a_record_of_a_newer_format_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 2, "runs": []}')
    with pytest.raises(FormatError, match="format 2"):
        write_run_record(str(tmp_path), {}, run_id="r")
    assert (tmp_path / "run.json").read_text() == '{"format": 2, "runs": []}'


def test_a_record_of_format_1_is_read_for_ever() -> None:
    """`golden/run-1` was written by ponente 0.1.0."""
    record = read_run_record(str(GOLDEN / "run-1"))
    assert record is not None and record.run_id == "golden-1"
    assert [life.first_step for life in record.lives] == [0, 50]
    assert record.config == {"trainer": {"seed": 1, "max_grad_norm": "Infinity"}}
    first, second = record.lives
    assert first.git is not None and len(first.git.commit) == 40
    assert second.git is None
    assert first.command == ["ponente", "train", "--hf_token=***"]
    assert first.extra == {"orders": ["web"]} and first.devices == "1 x cpu"
