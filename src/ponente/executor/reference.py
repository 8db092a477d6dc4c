"""Functions and classes by name: `module:qualname`, importable in another process.

In: a function or class of a package, a script or `__main__`. Out: a reference that a fresh process can load. A script
is imported there under its file's name. The name that enters identity depends on the file alone: the dotted path from
the topmost folder with an `__init__.py`; how the module was imported here changes nothing.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import msgspec

from ponente.config.errors import UserError

Function = Callable[..., Any]


class NotImportableError(UserError, TypeError):
    """A function or class that another process cannot import."""


class Reference(msgspec.Struct, frozen=True):
    """How to find an object in a fresh process: its module, its file where the module is a script, its name."""

    module: str
    qualname: str
    script: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


def refer(target: Any) -> Reference:
    """The reference of a function or class; a TypeError says what to do where there is none."""
    qualname = getattr(target, "__qualname__", None)
    module_name = getattr(target, "__module__", None)
    if qualname is None or module_name is None:
        raise NotImportableError(f"found {target!r}; needed a function defined with def at the top of a module")
    if "<lambda>" in qualname or "<locals>" in qualname:
        raise NotImportableError(
            f"found {qualname} in {module_name}; a step runs in its own process, which can import only functions and "
            "classes from the top of a module. Move it there and pass what it needs through the config"
        )
    owner = getattr(target, "__self__", None)
    if owner is not None and not isinstance(owner, type | ModuleType):
        raise NotImportableError(
            f"found {qualname}, a method of one {type(owner).__qualname__}; a step's process imports functions by "
            "name, without the object. Use a function at the top of a module and pass what it needs through the config"
        )
    return _refer(module_name, qualname, getattr(sys.modules.get(module_name), "__file__", None))


@lru_cache(maxsize=4096)
def _refer(module_name: str, qualname: str, file: str | None) -> Reference:
    if module_name != "__main__":
        return Reference(module=module_name, qualname=qualname)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name and spec.name != "__main__":  # python -m package.module
        return Reference(module=spec.name, qualname=qualname)
    if file is None:
        raise NotImportableError(f"found {qualname} typed at a prompt; a step's function must come from a file")
    script = os.path.abspath(file)
    return Reference(module=os.path.splitext(os.path.basename(script))[0], qualname=qualname, script=script)


@lru_cache(maxsize=4096)
def check_step_function(fn: Function) -> None:
    """Refuses, when the plan is made, what a step's process could not import or call with one argument."""
    refer(fn)
    try:
        inspect.signature(fn).bind(None)
    except TypeError as error:
        raise NotImportableError(
            f"found {fn.__qualname__}{inspect.signature(fn)}; needed a function of one argument, the config ({error})"
        ) from None
    except ValueError:
        return  # a builtin that does not say what it takes


def load(reference: Reference) -> Any:
    """The object that `reference` names, imported if need be."""
    module = _import(reference.module, reference.script)
    target: Any = module
    for part in reference.qualname.split("."):
        target = getattr(target, part)
    return target


def _import(name: str, script: str | None) -> ModuleType:
    if script is None:
        return importlib.import_module(name)
    for known in (name, "__main__"):
        module = sys.modules.get(known)
        if module is not None and _same_file(getattr(module, "__file__", None), script):
            return module
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"found {script}, which Python cannot import; needed a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = os.path.dirname(script)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module


def _same_file(file: str | None, script: str) -> bool:
    return file is not None and os.path.abspath(file) == script


def step_kind(fn: Function) -> str:
    """`module:qualname` as it enters identity."""
    reference = refer(fn)
    file = reference.script or getattr(sys.modules.get(fn.__module__), "__file__", None)
    return f"{module_name_of_file(file) if file else reference.module}:{reference.qualname}"


@lru_cache(maxsize=4096)
def module_name_of_file(file: str) -> str:
    """The dotted name of a file from the topmost regular package down: `experiments/x.py` is `x` without `__init__`."""
    folder, name = os.path.split(os.path.abspath(file))
    parts = [] if name == "__init__.py" else [os.path.splitext(name)[0]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return ".".join(parts)


def source_file(fn: Function) -> str | None:
    """The file that `fn` was written in."""
    code = getattr(fn, "__code__", None)
    return os.path.abspath(code.co_filename) if code is not None else None
