"""The command `ponente`: quick to start, plain in its errors, the same as the scripts it runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "executor" / "scripts"
WINDS = str(SCRIPTS / "winds.py")
Command = Callable[..., "subprocess.CompletedProcess[str]"]

LIST_IMPORTS = """
import json, runpy, sys
sys.argv = ["ponente", *{arguments!r}]
try:
    runpy.run_module("ponente", run_name="__main__")
finally:
    sys.stderr.write(json.dumps(sorted(sys.modules)))
"""
SLOW = {"jax", "ray", "numpy", "pyarrow", "rich", "fsspec", "yaml", "torch", "transformers", "tensorstore", "asyncio"}


@pytest.fixture
def ponente(tmp_path: Path) -> Command:
    """`ponente(*arguments)` as a program, in a folder of its own."""

    def call(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PONENTE_")}
        return subprocess.run(
            [sys.executable, "-m", "ponente", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**clean, **environment},
        )

    return call


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A prefix under which the winds blew twice, the second time the first of them stronger. Only read it."""
    prefix = str(tmp_path_factory.mktemp("cli") / "prefix")
    for force in ("1", "5"):
        command = [sys.executable, WINDS, "--prefix", prefix, "--launcher", "driver"]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env={**os.environ, "LEVANTE": force})
    return prefix


# -- imports


@pytest.mark.parametrize(
    "arguments", ["--help", "plan --help", f"plan {WINDS} --prefix p", f"why levante --script {WINDS}"]
)
def test_nothing_slow_is_imported_where_it_is_not_needed(arguments: str, tmp_path: Path) -> None:
    code = LIST_IMPORTS.format(arguments=arguments.split())
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    modules = {name.partition(".")[0] for name in json.loads(ended.stderr.splitlines()[-1])}
    assert modules & SLOW == set()
    assert "ponente" in modules


def test_help_names_every_command(ponente: Command) -> None:
    ended = ponente("--help")
    assert ended.returncode == 0
    for command in ("plan", "run", "status", "why", "diff", "adopt"):
        assert f"\n    {command} " in ended.stdout


# -- plan and run


def test_plan_prints_the_plan_and_writes_nothing(ponente: Command, tmp_path: Path) -> None:
    ended = ponente("plan", WINDS, "--prefix", "p")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == f"prefix {tmp_path / 'p'}"
    assert ended.stdout.splitlines()[-1] == "3 steps: 0 hits, 3 to run"
    assert list(tmp_path.iterdir()) == []


def test_plan_is_what_dry_run_prints(ponente: Command, done: str) -> None:
    by_plan = ponente("plan", WINDS, "--prefix", done, TRAMONTANA="9")
    by_run = ponente("run", WINDS, "--prefix", done, "--dry_run", "true", TRAMONTANA="9")
    by_script = subprocess.run(
        [sys.executable, WINDS, "--prefix", done, "--dry_run"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRAMONTANA": "9"},
    )
    assert by_plan.stdout == by_run.stdout == by_script.stdout
    assert "config.force 3 -> 9; " in by_plan.stdout and ", since run 20" in by_plan.stdout


def test_run_runs_and_a_second_time_every_step_is_a_hit(ponente: Command, tmp_path: Path) -> None:
    first = ponente("run", WINDS, "--prefix", "p", "--max_concurrent", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "3 steps: 3 done\n"
    assert "[3/3] done   winds/tramontana-" in first.stderr
    assert ponente("run", WINDS, "--prefix", "p").stdout == "every step was a hit: 3 steps, nothing to run\n"
    as_program = subprocess.run(
        [sys.executable, WINDS, "--prefix", f"{tmp_path}/p/"], capture_output=True, text=True, timeout=60
    )
    assert as_program.stdout == "every step was a hit: 3 steps, nothing to run\n"


def test_dry_run_false_runs(ponente: Command) -> None:
    ended = ponente("run", WINDS, "--prefix", "p", "--dry_run", "false", "--launcher", "driver")
    assert ended.stdout == "3 steps: 3 done\n"


def test_a_failed_run_exits_with_1_and_tells_the_cause_whole_and_last(ponente: Command) -> None:
    ended = ponente("run", WINDS, "--prefix", "p", "--launcher", "driver", PONENTE="-1")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("FAILED winds/ponente-")
    assert any("ValueError: found force=-1" in line for line in lines)
    assert lines[-1] == "3 steps: 1 done, 1 failed, 1 held"


def test_the_prefix_may_come_from_the_environment(ponente: Command, done: str) -> None:
    assert "3 hits, 0 to run" in ponente("plan", WINDS, PONENTE_PREFIX=done).stdout


# -- why, diff, adopt, status


def test_why_and_diff_name_the_field(ponente: Command, done: str) -> None:
    why = ponente("why", "tramontana", "--prefix", done)
    assert why.returncode == 0
    assert why.stdout.endswith("    winds/ponente <- winds/levante: config.force (default) -> 5\n")
    newer, older = sorted(os.listdir(f"{done}/.runs"), reverse=True)
    assert ponente("diff", older, newer, "--prefix", done).stdout == "winds/levante: config.force (default) -> 5\n"


def test_why_of_a_step_that_has_not_run_needs_the_script(ponente: Command, done: str) -> None:
    told = ponente("why", "winds/ponente", "--prefix", done, "--script", WINDS, LEVANTE="5", PONENTE="8").stdout
    assert "has not run" in told and "config.force 2 -> 8" in told


def test_adopt_makes_a_hit_of_a_step_that_has_not_run(ponente: Command, tmp_path: Path) -> None:
    ponente("run", WINDS, "--prefix", "p", "--launcher", "driver")
    [old] = (tmp_path / "p" / "winds").glob("ponente-*")
    assert "1 hit, 2 to run" in ponente("plan", WINDS, "--prefix", "p", PONENTE="4").stdout
    new = ["winds/ponente", "--script", WINDS, "--prefix", "p"]
    adopted = ponente("adopt", str(old), *new, "--reason", "the same", PONENTE="4")
    assert adopted.returncode == 0, adopted.stderr
    assert "now has the result of" in adopted.stdout
    assert "3 hits, 0 to run" in ponente("plan", WINDS, "--prefix", "p", PONENTE="4").stdout


def test_status_of_a_run_that_ended(ponente: Command, done: str) -> None:
    ended = ponente("status", "--prefix", done)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1].endswith(": ended; 3 done")


def test_a_reader_who_has_seen_enough_is_no_error(done: str) -> None:
    command = f"{sys.executable} -m ponente status --prefix {done} | head -n 1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.stderr == "" and ended.returncode in (0, 141)


# -- errors


NO_CALL = "x = 1\n"
BROKEN = "import nowhere_to_be_found\n"
BUG = "from ponente.executor import executor_main\n{}['missing']\n"
LAMBDA = """
from ponente.executor import ExecutorStep, executor_main
if __name__ == "__main__":
    executor_main([ExecutorStep(name="s", fn=lambda config: None)])
"""
AS_TEXT = """
from ponente.executor import ExecutorStep, executor_main
def act(config): ...
a = ExecutorStep(name="a", fn=act)
if __name__ == "__main__":
    executor_main([ExecutorStep(name="b", fn=act, config=f"{a}/x")])
"""


def refused(ended: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    for part in parts:
        assert part in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("plan nowhere.py", ["found no script at nowhere.py", "give the path of an experiment, a .py file"]),
        ("run nowhere.py", ["found no script at nowhere.py"]),
        ("plan WINDS --prefix ftp://b/x", ["found ftp://b/x", "needed one of: file, gs, memory"]),
        ("run WINDS --prefix memory://x", ["found prefix memory://x", "use --launcher driver"]),
        ("plan WINDS --run_only mistral", ["found --run_only 'mistral'", "the steps are winds/levante"]),
        ("plan WINDS --force (", ["found --force '('", "no regular expression", "correct it"]),
        ("plan WINDS --rates nowhere.yaml", ["found no rate card at", "give a YAML file"]),
        ("plan WINDS --max_concurrent 0", ["found '0', needed a number of at least 1"]),
        ("plan WINDS --prefx p", ["found --prefx p; did you mean --prefix?"]),
        ("run WINDS --small", ["found --small; see --help; flags of ", "winds.py's own are for python "]),
        ("status", ["found no run under", "run an experiment first, or give its --prefix"]),
        ("status 2026 --prefix DONE", ["found no run '2026'; it has 20"]),
        (
            "why mistral --prefix DONE",
            ["found no step 'mistral'", "it has winds/levante", "Name one, or give --script"],
        ),
        ("why x", ["found no step 'x'", "it has no runs"]),
        ("diff levante mistral --prefix DONE", ["found no step 'mistral'"]),
        ("adopt levante ponente --prefix DONE --reason x", ["already has a result of its own"]),
        ("adopt levante levante --prefix DONE --reason x", ["both names mean", "name two different steps"]),
        ("adopt levante ponente --prefix DONE", ["--reason"]),
        ("why levante --script nowhere.py", ["found no script at nowhere.py"]),
        ("", ["COMMAND"]),
        ("blow", ["invalid choice: 'blow'"]),
    ],
)
def test_a_refused_command_says_what_to_do_and_exits_with_2(
    arguments: str, parts: list[str], ponente: Command, done: str
) -> None:
    words = [{"WINDS": WINDS, "DONE": done}.get(word, word) for word in arguments.split()]
    refused(ponente(*words), *parts)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (NO_CALL, ["ended without a call of executor_main"]),
        (LAMBDA, ["found <lambda>", "Move it there and pass what it needs through the config"]),
        (AS_TEXT, ["found step 'a' used as text", "Put the handle itself into a config field"]),
    ],
    ids=["no call", "lambda", "handle as text"],
)
def test_a_script_that_makes_no_sense_is_refused(
    source: str, parts: list[str], ponente: Command, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(source)
    refused(ponente("why", "x", "--script", "script.py"), *parts)


@pytest.mark.parametrize(("source", "error"), [(BROKEN, "ModuleNotFoundError"), (BUG, "KeyError: 'missing'")])
def test_a_bug_in_a_script_keeps_its_traceback(source: str, error: str, ponente: Command, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(source)
    for arguments in (["plan", "script.py"], ["why", "x", "--script", "script.py"]):
        ended = ponente(*arguments)
        assert ended.returncode == 1
        assert 'script.py", line' in ended.stderr and error in ended.stderr


def test_damaged_records_are_named_without_a_traceback(ponente: Command, tmp_path: Path) -> None:
    ponente("run", WINDS, "--prefix", "p", "--launcher", "driver")
    entry: Any = next((tmp_path / "p" / "winds").glob("levante-*")) / ".log.000002.json"
    entry.write_text("{}")
    for arguments in (["plan", WINDS], ["why", "levante"], ["status"]):
        refused(ponente(*arguments, "--prefix", "p"), ".log.000002.json cannot be read", "restore it, or remove it")
