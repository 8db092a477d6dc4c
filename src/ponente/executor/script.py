"""Scripts run from here: as a program, or only for the graph that they would run."""

import os
import runpy
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import ponente
from ponente.config.errors import RefusedError
from ponente.executor.graph import Graph, build_graph
from ponente.executor.step import ExecutorStep


class _CollectedError(BaseException):
    """Ends a script whose graph was wanted, not its run."""


@dataclass
class ScriptRun:
    """A script that is being run; `graph` is set where only that is wanted of it."""

    only_graph: bool
    has_steps: bool = False
    graph: Graph | None = None

    def reached(self, targets: Sequence[ExecutorStep]) -> None:
        """Is told by executor_main of its targets; does not return where only the graph is wanted."""
        self.has_steps = True
        if self.only_graph:
            self.graph = build_graph(targets)
            raise _CollectedError


_current: ContextVar[ScriptRun | None] = ContextVar("ponente_script", default=None)


def current_script() -> ScriptRun | None:
    """The script that is being run from here, if any."""
    return _current.get()


def graph_of_script(path: str) -> Graph:
    """The graph that a script would run; nothing is run."""
    script = ScriptRun(only_graph=True)
    _run(path, [], script)
    assert script.graph is not None
    return script.graph


def graphs_of_scripts(paths: Sequence[str]) -> list[Graph]:
    """The graphs of several scripts, each of which imports modules beside it, of whatever name, as if it were alone."""
    graphs = []
    for path in paths:
        before = set(sys.modules)
        graphs.append(graph_of_script(path))
        installed = tuple({sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(ponente.__file__))})
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not os.path.abspath(file).startswith(installed):
                del sys.modules[name]
    return graphs


def run_script(path: str, argv: list[str]) -> None:
    """Runs a script as `python script argv…` does; one that never calls executor_main is refused afterwards."""
    _run(path, argv, ScriptRun(only_graph=False))


def _run(path: str, argv: list[str], script: ScriptRun) -> None:
    if not os.path.isfile(path):
        raise RefusedError(f"found no script at {path}; give the path of an experiment, a .py file")
    before = sys.argv, sys.path[:]
    sys.argv = [path, *argv]
    sys.path[0:1] = [os.path.dirname(os.path.abspath(path)), *sys.path[0:1]]
    token = _current.set(script)
    try:
        runpy.run_path(path, run_name="__main__")
    except _CollectedError:
        return
    finally:
        _current.reset(token)
        sys.argv, sys.path[:] = before
    if not script.has_steps:
        raise RefusedError(f"{path} ended without a call of executor_main; needed a script that calls it")
