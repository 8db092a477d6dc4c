"""Parallelism in Levanter's older keys, as its newer section `trainer.mesh`.

In: one raw layer. Out: the same with `mesh` alone. A mapping that an older key gives replaces that of earlier layers.
"""

from dataclasses import replace
from typing import Any

from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.tree import Path, Tree

_MESH = ("trainer", "mesh")
_SIZES: dict[Path, Path] = {
    ("trainer", "model_axis_size"): ("trainer", "mesh", "axes", "model"),
    ("trainer", "replica_ici_axis_size"): ("trainer", "mesh", "axes", "replica"),
    ("trainer", "replica_dcn_axis_size"): ("trainer", "mesh", "dcn_axes", "replica_dcn"),
}
_MAPPINGS: tuple[Path, ...] = tuple(
    ("trainer", key) for key in ("fsdp_axis", "tensor_parallel_axes", "parameter_axis_resources", "axis_resources")
)
SPELLINGS = tuple(".".join(old) for old in (*_SIZES, *_MAPPINGS))


def rename(tree: Tree) -> None:
    """What Levanter's older schema says of parallelism, in the words of its mesh; each key replaces what was said."""
    if tree.has(_MESH) and tree.get(_MESH) is None:
        _put_whole(tree, _MESH, {}, like=_MESH)
    for old, new in _SIZES.items():
        if tree.has(old) and tree.get(old) is None:
            tree.put(old, 1, like=old)
        tree.move(old, new)
    rows = str(tree.get((*_MESH, "batch_axis_name")) or "batch")
    mappings: dict[str, tuple[Path, dict[str, Any]]] = {}
    for old in _MAPPINGS:
        if tree.has(old):
            for mapping, places in _mappings(tree, old, rows).items():
                before = mappings[mapping][1] if mapping in mappings else {}
                mappings[mapping] = old, before | places
    for mapping, (old, places) in mappings.items():
        new = (*_MESH, mapping)
        if tree.has(new):
            raise ConfigError(
                Problem(
                    found=f"{tree.place(old)} and {tree.place(new)}",
                    needed="one of the two, which say the same thing",
                    remedy=f"remove {old[-1]}",
                )
            )
        _put_whole(tree, new, places, like=old)
    for old in _MAPPINGS:
        tree.drop(old)


def _mappings(tree: Tree, old: Path, rows: str) -> dict[str, dict[str, Any]]:
    """What one of the older keys says, by the mapping that it belongs to."""
    if old[-1] == "fsdp_axis":
        return {"param_mapping": {"embed": None} | dict.fromkeys(_names(tree, old), "data")}
    if old[-1] == "tensor_parallel_axes":
        named = _names(tree, old)  # without any, all are split where there is an axis for it
        splits = {"heads": None, "mlp": None, "vocab": None} | dict.fromkeys(named, "model")
        return {"shared_mapping": splits if named else {}}
    given = tree.get(old)
    if not isinstance(given, dict | None):
        raise ConfigError(
            Problem(
                found=f"{tree.place(old)} = {shown(given)}",
                needed="names of axes and where they lie, such as {embed: data}",
                remedy="write it so, or remove it",
            )
        )
    if old[-1] == "parameter_axis_resources":
        return {"param_mapping": dict(given or {})}
    found: dict[str, dict[str, Any]] = {}
    for name, place in (given or {}).items():
        mapping = "compute_mapping" if name == rows else "shared_mapping" if place == "model" else "param_mapping"
        found.setdefault(mapping, {})[name] = place
    return found


def _put_whole(tree: Tree, path: Path, value: dict[str, Any], like: Path) -> None:
    """Sets a section that replaces what earlier layers say there."""
    place = tree.place(like)
    tree.drop(path)
    tree.put(path, value, like=like)
    tree.places[path] = replace(place, whole=True)


def _names(tree: Tree, path: Path) -> list[str]:
    value = tree.get(path)
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            Problem(
                found=f"{tree.place(path)} = {shown(value)}",
                needed="the name of an axis, such as embed, or a list of them",
                remedy="write it so, or remove it",
            )
        )
    return names
