"""Imports point down, as docs/architecture.md draws them; nothing is hidden but what is slow or optional.

The tests read the source; they import nothing of it.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "ponente"
ROWS = [
    ["config"],
    ["store", "ops"],
    ["cluster"],
    ["executor", "documents", "tokens", "batches", "models"],
    ["train", "generate"],
    ["evaluate", "serve"],
    ["experiment", "browse"],
    ["cli"],
    ["__main__"],
]
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
MAY_IMPORT_EXECUTOR = {"executor", "experiment", "browse", "cli"}
LIGHT = {"msgspec"}  # the only packages besides Python's own that any module may import at its top
ONLY_IN = {"ray": "cluster.ray"}


@dataclass(frozen=True)
class Import:
    source: str  # dotted, without the package's name
    target: str
    hidden: bool  # inside a function

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imports_of(name: str, tree: ast.Module) -> Iterator[Import]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            yield Import(name, target, hidden=id(node) in inside)


ALL = [found for name, tree in MODULES.items() for found in imports_of(name, tree)]


def own_module(target: str) -> str | None:
    """The module of ours that an import names, if it is one."""
    if target.partition(".")[0] != "ponente":
        return None
    inner = target.partition(".")[2]
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_room_has_a_place_in_the_order() -> None:
    assert {room(name) for name in MODULES if name} <= set(LEVEL)


def test_imports_point_down() -> None:
    wrong = []
    for found in ALL:
        target = own_module(found.target)
        if target is None or not target or room(target) == room(found.source):
            continue
        if LEVEL[room(target)] >= LEVEL[room(found.source)]:
            wrong.append(str(found))
        if room(target) == "executor" and room(found.source) not in MAY_IMPORT_EXECUTOR:
            wrong.append(f"{found} (only {sorted(MAY_IMPORT_EXECUTOR)} may import the executor)")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in ALL:
        target = own_module(found.target)
        if target is not None and target != found.source and not found.hidden:
            edges[found.source].add(target)
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, f"a circle of imports: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, [*path, name])
            done.add(name)

    for name in MODULES:
        visit(name, [])


def slow_modules() -> set[str]:
    """Modules of ours that import a slow or optional package at their top."""
    return {
        found.source
        for found in ALL
        if not found.hidden and found.target.partition(".")[0] not in sys.stdlib_module_names | LIGHT | {"ponente"}
    }


def test_what_functions_import_is_slow_or_the_command_line() -> None:
    slow = slow_modules()
    wrong = [
        str(found)
        for found in ALL
        if found.hidden and room(found.source) != "cli" and own_module(found.target) not in slow
    ]
    assert wrong == []


def test_packages_that_must_stay_in_one_place_do() -> None:
    wrong = [
        str(found)
        for found in ALL
        for package, place in ONLY_IN.items()
        if found.target.partition(".")[0] == package and not found.source.startswith(place)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", sorted(name for name in MODULES))
def test_every_module_says_what_it_is_for(name: str) -> None:
    docstring = ast.get_docstring(MODULES[name])
    assert docstring, f"{name or 'ponente'} has no docstring"
    assert len(docstring.splitlines()) <= 8


def test_the_rule_would_notice_an_import_that_points_up() -> None:
    tree = ast.parse("def f():\n    from ponente.executor.plan import Plan\nimport ponente.cli\n")
    found = list(imports_of("store.paths", tree))
    assert [(one.target, one.hidden) for one in found] == [("ponente.cli", False), ("ponente.executor.plan.Plan", True)]
    assert [own_module(one.target) for one in found] == ["cli", "executor.plan"]
