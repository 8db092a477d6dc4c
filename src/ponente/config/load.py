"""The whole way from a YAML file and flags to a config object.

In: a config class, `--config_path`, the other flags. Out: the object, the warnings (logged too, each once), and where
each value was written. Plugins are imported first, then the raw layers are rewritten to our spelling, then decoded.
"""

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ponente.config.decode import decode
from ponente.config.document import read_document
from ponente.config.flags import parse_flags
from ponente.config.plugins import import_plugins
from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.rewrite import SPELLINGS, rewrite
from ponente.config.tree import Place, Tree

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PLUGINS = ("plugins",)


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[T]):
    """A config, and what is known of how it came to be."""

    config: T
    warnings: tuple[str, ...]
    plugins: tuple[str, ...]
    tree: Tree  # what was decoded, in our spelling, without what was passed over

    def place_of(self, path: str) -> str:
        """Where the value at "data.cache_dir" was written, as the user spelt it: "data.cache_dir (c.yaml:4)"."""
        return str(self.tree.place(tuple(path.split("."))))


def load_config(
    cls: type[T],
    config_path: str | None,
    flags: Sequence[str] = (),
    *,
    passed_over: Collection[str] = (),
    check: Callable[[Tree], None] | None = None,
) -> Loaded[T]:
    """Reads, rewrites, checks and decodes a configuration.

    Args:
        config_path: a path or any fsspec URL; None where the flags say everything.
        flags: the arguments, such as `["--trainer.num_train_steps", "100"]`, without `--config_path`.
        passed_over: key paths that are known and belong to other commands: "model", "data.shuffle",
            "data.components.*.pack". What stands there is neither checked nor decoded.
        check: looks at the whole, in our spelling, before it is decoded, and raises if it must not be.
    """
    file = Tree() if config_path is None else read_document(config_path)
    layers = [file, *parse_flags(flags, file.raw)]
    plugins = _import_plugins(layers)
    for layer in layers:
        layer.drop_matching(passed_over)
    rewritten = rewrite(*layers)
    rewritten.tree.drop_matching(passed_over)
    for warning in rewritten.warnings:
        logger.warning("%s", warning)
    if check is not None:
        check(rewritten.tree)
    config = decode(cls, rewritten.tree, also_known=[*passed_over, *SPELLINGS])
    return Loaded(config=config, warnings=rewritten.warnings, plugins=plugins, tree=rewritten.tree)


def _import_plugins(layers: list[Tree]) -> tuple[str, ...]:
    """Imports what the last layer that speaks of plugins names, and takes the key out of all."""
    speaking = [layer for layer in layers if layer.has(_PLUGINS)]
    if not speaking:
        return ()
    value, place = speaking[-1].get(_PLUGINS), speaking[-1].place(_PLUGINS)
    for layer in speaking:
        layer.drop(_PLUGINS)
    return import_plugins(_names(value, str(place)), str(place), _folder(place))


def _folder(place: Place) -> str | None:
    """The folder of the local file where something was written."""
    file = place.where.rpartition(":")[0].removeprefix("file://")
    return os.path.dirname(file) if file and "://" not in file else None


def _names(value: Any, place: str) -> list[str]:
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            Problem(
                found=f"{place} = {shown(value)}",
                needed="a list of modules and Python files",
                remedy="write plugins: [my_package.sources, path/to/formats.py]",
            )
        )
    return names
