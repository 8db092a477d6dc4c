"""The first tutorial, as a newcomer runs it: a plan, a run, a second run, a changed line, another launcher."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ponente.store.expansion import expand

TUTORIAL = Path(__file__).parents[2] / "experiments" / "tutorials" / "word_count.py"
STEPS = {"text", "speeches", "counts", "totals", "speakers", "report"}


def run(script: Path, *arguments: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PONENTE_")}
    ended = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def made(prefix: Path) -> dict[str, bytes]:
    """What the steps published, by step and name; Parquet and text alike."""
    found = {}
    for step in (prefix / "tutorial").iterdir():
        for path in [*step.glob("output-*/**/*"), *step.glob("state/*/*")]:
            if path.is_file():
                name = re.sub(r"-[0-9a-f]{8}/(output-\d+|state)", "", str(path.relative_to(prefix / "tutorial")))
                found[name] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tutorial ran once, as it is."""
    folder = tmp_path_factory.mktemp("site")
    first = run(TUTORIAL, cwd=folder)
    assert first.splitlines()[0] == "6 steps: 6 done"
    assert "gloucester" in first.lower() and re.search(r"^  the +6,281 ", first, re.MULTILINE)
    (folder / "first.txt").write_text(first)
    return folder


def test_the_second_run_says_that_every_step_was_a_hit_and_prints_the_same_report(site: Path) -> None:
    again = run(TUTORIAL, cwd=site).splitlines()
    assert again[0] == "every step was a hit: 6 steps, nothing to run"
    assert again[1:] == (site / "first.txt").read_text().splitlines()[1:]
    assert {path.name.rpartition("-")[0] for path in (site / "ponente-runs" / "tutorial").iterdir()} == STEPS


def test_the_dry_run_in_a_new_place_says_what_would_run_and_writes_nothing(tmp_path: Path) -> None:
    plan = run(TUTORIAL, "--dry_run", cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in plan[1:7]] == ["run"] * 6
    assert plan[7] == "6 steps: 0 hits, 6 to run"
    assert list(tmp_path.iterdir()) == []


def test_both_launchers_publish_the_same_bytes(site: Path, tmp_path: Path) -> None:
    run(TUTORIAL, "--launcher", "driver", cwd=tmp_path)
    one, other = made(site / "ponente-runs"), made(tmp_path / "ponente-runs")
    assert one.keys() == other.keys() and len(one) == 4 + 8 + 8
    assert [name for name in one if one[name] != other[name]] == []


def test_a_changed_line_runs_only_what_depends_on_it_and_the_plan_names_the_field(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "word_count.py"
    shutil.copy(TUTORIAL.with_name("shakespeare.txt"), tmp_path)
    shutil.copytree(site / "ponente-runs", tmp_path / "ponente-runs")
    source = TUTORIAL.read_text()
    assert source.count("\nTOP = 8\n") == 1
    copy.write_text(source.replace("\nTOP = 8\n", "\nTOP = 3\n"))
    plan = run(copy, "--dry_run", cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in plan[1:7]] == ["hit"] * 5 + ["run"]
    assert "config.top 8 -> 3, since run 20" in plan[6]
    changed = run(copy, "--launcher", "driver", cwd=tmp_path).splitlines()
    assert changed[0] == "6 steps: 5 hit, 1 done"
    assert len(changed) == 5


def test_records_of_a_step_never_match_a_glob_over_its_output(site: Path) -> None:
    for step in (site / "ponente-runs" / "tutorial").iterdir():
        inside = [path for folder in step.glob("output-*") for path in folder.rglob("*")]
        assert [path for path in inside if path.name.startswith(".")] == []
        matches = expand(f"{step}/**/*.json") if list(step.rglob("[!.]*.json")) else []
        assert all("/output-" in match or "/state/counts/" in match for match in matches)
    counts = next((site / "ponente-runs" / "tutorial").glob("counts-*"))
    assert len(expand(f"{counts}/**/*.json")) == 8  # the shards, and none of the records beside them
