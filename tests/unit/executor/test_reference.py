"""Functions by name: the same kind however a script is started; what cannot be imported is refused when planned."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zoo

from ponente.config import UserError
from ponente.executor import ExecutorStep, step_type
from ponente.executor.graph import build_graph
from ponente.executor.reference import Reference, load, module_name_of_file, refer, step_kind

ASK = """
import json, os, sys
from ponente.executor import ExecutorStep, executor_main
from ponente.executor.graph import build_graph

def act(config): ...

step = ExecutorStep(name="s", fn=act, config={"x": 1})

def tell():
    print(json.dumps([step.declared_kind, build_graph([step]).nodes[0].identity]))

if __name__ == "__main__":
    tell()
    executor_main([step])
"""


def ask(*command: str, cwd: Path) -> Any:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[0])


def test_the_kind_is_the_same_however_the_script_is_started_or_imported(tmp_path: Path) -> None:
    script = tmp_path / "experiments" / "exp1_x.py"
    script.parent.mkdir()
    script.write_text(ASK)
    dry = ["--dry_run", "--prefix", "p"]
    answers = [
        ask("experiments/exp1_x.py", *dry, cwd=tmp_path),
        ask("exp1_x.py", *dry, cwd=script.parent),
        ask(str(script), *dry, cwd=Path("/")),
        ask("-m", "experiments.exp1_x", *dry, cwd=tmp_path),
        ask("-m", "ponente", "run", "experiments/exp1_x.py", *dry, cwd=tmp_path),
        ask("-c", "from experiments import exp1_x; exp1_x.tell()", cwd=tmp_path),
        ask("-c", "import exp1_x; exp1_x.tell()", cwd=script.parent),
    ]
    assert answers[0][0] == "exp1_x:act"
    assert all(answer == answers[0] for answer in answers)


def test_a_module_of_a_package_is_named_from_the_topmost_package(tmp_path: Path) -> None:
    for folder in ("top", "top/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    assert module_name_of_file(str(tmp_path / "top" / "inner" / "x.py")) == "top.inner.x"
    assert module_name_of_file(str(tmp_path / "top" / "inner" / "__init__.py")) == "top.inner"
    assert module_name_of_file(str(tmp_path / "x.py")) == "x"


def closure() -> Callable[[Any], None]:
    def inner(config: Any) -> None: ...

    return inner


class Worker:
    def work(self, config: Any) -> None: ...

    @classmethod
    def make(cls, config: Any) -> str:
        return cls.__name__

    def __call__(self, config: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda config: None, "<lambda>"),
        (closure(), "closure.<locals>.inner"),
        (functools.partial(zoo.act), "functools.partial"),
        (Worker(), "Worker object"),
        (Worker().work, "a method of one Worker"),
    ],
    ids=["lambda", "closure", "partial", "object", "method"],
)
def test_what_another_process_cannot_import_is_refused_when_the_plan_is_made(function: Any, told: str) -> None:
    step = ExecutorStep(name="s", fn=function)
    with pytest.raises(UserError) as caught:
        build_graph([step])
    assert told in str(caught.value)
    assert "top of a module" in str(caught.value)


def test_functions_class_methods_and_builtins_can_be_referred_to() -> None:
    for function in (zoo.act, Worker.make, len):
        assert load(refer(function)) == function
    assert load(refer(Worker.make))(None) == "Worker"


def test_a_declared_kind_survives_renaming() -> None:
    @step_type(kind="tokenize")
    def old_name(config: Any) -> None: ...

    assert ExecutorStep(name="s", fn=old_name).declared_kind == "tokenize"
    assert ExecutorStep(name="s", fn=old_name, kind="mine").declared_kind == "mine"
    assert step_kind(zoo.act) == "zoo:act"


def test_a_script_is_loaded_from_its_file_and_only_once(tmp_path: Path) -> None:
    script = tmp_path / "loaded_once_for_this_test.py"
    script.write_text("import os\ncalls = []\ndef act(config): ...\ncalls.append(1)\n")
    reference = Reference(module=script.stem, qualname="act", script=str(script))
    try:
        assert load(reference) is load(reference)
        assert load(Reference(module=script.stem, qualname="calls", script=str(script))) == [1]
    finally:
        sys.modules.pop(script.stem)
        sys.path.remove(str(tmp_path))


def test_two_scripts_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        script = tmp_path / folder / "same_name_for_this_test.py"
        script.write_text(f"where = {folder!r}\n")
        found.append(load(Reference(module=script.stem, qualname="where", script=os.fspath(script))))
        sys.path.remove(str(script.parent))
    sys.modules.pop("same_name_for_this_test")
    assert found == ["a", "b"]
