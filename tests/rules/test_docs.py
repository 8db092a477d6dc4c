"""What the documents say is there is there: commands, flags, files, and the README's own example."""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponente.cli import build_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()


def subparsers(
    parser: argparse.ArgumentParser | None = None, above: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and its parser: "plan", "data inspect" …"""
    for action in (parser or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                inner = list(subparsers(sub, f"{above}{name} "))
                yield from inner or [(f"{above}{name}", sub)]


@pytest.mark.parametrize("name", [name for name, _ in subparsers()])
def test_every_command_has_a_section(name: str) -> None:
    assert re.search(rf"^## (.*, )?ponente {name}\b", COMMANDS, re.MULTILINE)
    assert re.search(rf"\b{name}\b", README)


def test_every_flag_is_documented() -> None:
    flags = {flag for _, parser in subparsers() for action in parser._actions for flag in action.option_strings}
    missing = [flag for flag in sorted(flags - {"-h", "--help"}) if f"`{flag}" not in COMMANDS]
    assert missing == []


def test_no_flag_is_documented_that_does_not_exist() -> None:
    flags = {flag for _, parser in subparsers() for action in parser._actions for flag in action.option_strings}
    documented = set(re.findall(r"\| `(--[a-z_]+)", COMMANDS))
    assert documented <= flags


def mapped_paths() -> list[str]:
    section = README.partition("## The map")[2]
    lines = [line for line in section.splitlines() if re.match(r" {4}( {2})?[\w.]", line)]
    root, paths = "", []
    for line in lines:
        name = line.split()[0]
        nested = line.startswith("      ")
        paths.append(f"{root}{name}" if nested else name)
        if not nested:
            root = name if name.endswith("/") else ""
    return paths


def test_the_map_names_what_exists() -> None:
    paths = mapped_paths()
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_map_misses_no_room_and_no_folder() -> None:
    paths = {path.rstrip("/") for path in mapped_paths()}
    rooms = {f"src/ponente/{path.parent.name}" for path in (ROOT / "src" / "ponente").glob("*/__init__.py")}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tops = {line.split("/")[0] for line in tracked.stdout.splitlines() if "/" in line} - {"src", ".ci"}
    assert rooms - paths == set()
    assert tops - paths == set()


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_example_of_the_readme_runs_as_it_is(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    script = tmp_path / "hello.py"
    script.write_text(code.group(1))
    command = [sys.executable, str(script), "--prefix", str(tmp_path / "runs")]
    first = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == "HELLO WORLD"
    script.write_text(code.group(1).replace('whom="world"', 'whom="moon"'))
    plan = subprocess.run([*command, "--dry_run"], capture_output=True, text=True, cwd=tmp_path)
    assert "greeting: config.whom 'world' -> 'moon', since run" in plan.stdout
