"""Modules of the user's own, imported before a configuration is decoded so that what they register is known.

In: names of modules and paths of files. Out: the files' absolute paths and the modules' names. A file is imported under
its own name with its folder at the end of `sys.path`, which spawned workers are given too: so objects of its classes
can be pickled, and the child imports the same file.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ponente.config.problems import ConfigError, Problem


def import_plugins(names: Sequence[str], place: str, folder: str | None = None) -> tuple[str, ...]:
    """Imports each plugin.

    Args:
        names: a module ("mine.sources") or a file ("mine/sources.py", from `folder` or else the working folder).
        place: where the names were written, for errors.

    Returns: the names, files in absolute form, so that they mean the same from any other folder.
    """
    return tuple(
        _import_file(name, place, folder) if name.endswith(".py") else _import(name, name, place) for name in names
    )


def _import(module: str, name: str, place: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            Problem(
                found=f"the plugin {name} in {place}, which fails to import ({type(error).__name__}: {error})",
                needed="a module that can be imported, or a path that ends in .py",
                remedy="try it with python -c 'import …', and put its folder on PYTHONPATH",
            )
        ) from error
    return name


def _import_file(name: str, place: str, folder: str | None) -> str:
    tried = [os.path.abspath(os.path.join(base, os.path.expanduser(name))) for base in (folder or "", "")]
    path = next((one for one in tried if os.path.isfile(one)), None)
    if path is None:
        raise ConfigError(
            Problem(
                found=f"no file {' or '.join(dict.fromkeys(tried))} for the plugin {name} in {place}",
                needed="a Python file",
                remedy="give its path from the folder of the YAML file, or an absolute one",
            )
        )
    module = os.path.splitext(os.path.basename(path))[0]
    home = os.path.dirname(path)
    if home not in sys.path:
        sys.path.append(home)
        importlib.invalidate_caches()
    _check_name(module, path, place)
    return _import(module, path, place)


def _check_name(module: str, path: str, place: str) -> None:
    """Refuses a file whose name is another module's: a worker would import that one."""
    loaded = sys.modules.get(module)
    other = _file_of(loaded) if loaded is not None else _file_found(module)
    if not module.isidentifier() or other is None or os.path.realpath(other) != os.path.realpath(path):
        raise ConfigError(
            Problem(
                found=f"the plugin {path} in {place}, whose name {module} already means {other or 'nothing in Python'}",
                needed="a file name that is a Python name and no other module's",
                remedy=f"rename the file, for instance to my_{module.replace('-', '_')}.py",
            )
        )


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or f"the module {module.__name__}"


def _file_found(module: str) -> str | None:
    if not module.isidentifier():
        return None
    spec = importlib.util.find_spec(module)
    return spec.origin if spec is not None else None
