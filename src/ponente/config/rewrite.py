"""Either Levanter schema to ours: one pure function for files and flags alike.

In: raw layers, a file's first, then one a flag. Out: one raw tree in our spelling, with warnings. Each layer is first
brought to one spelling, so that `--model.seq_len` wins over a file's `max_seq_len`; the layers are laid over each
other; only then is the shape changed, for whether `data` holds one dataset or a mixture shows in the whole alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ponente.config import data_schema
from ponente.config.left_out import leave_out, refuse
from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.tree import Path, Tree

_RENAMED: dict[Path, Path] = {
    ("model", "seq_len"): ("model", "max_seq_len"),
    ("trainer", "profiler_start_step"): ("trainer", "profiler", "start_step"),
    ("trainer", "profiler_num_steps"): ("trainer", "profiler", "num_steps"),
    ("trainer", "profiler_perfetto_link"): ("trainer", "profiler", "perfetto_link"),
    ("address",): ("cluster",),  # of levanter.main.cache_dataset
    ("trainer", "batch_axis"): ("trainer", "mesh", "batch_axis_name"),
}
_MESH_SIZES: dict[Path, Path] = {
    ("trainer", "model_axis_size"): ("trainer", "mesh", "axes", "model"),
    ("trainer", "replica_ici_axis_size"): ("trainer", "mesh", "axes", "replica"),
    ("trainer", "replica_dcn_axis_size"): ("trainer", "mesh", "dcn_axes", "replica_dcn"),
}
_DEPRECATED: dict[Path, Path] = {("optimizer", "cooldown"): ("optimizer", "decay")}
SPELLINGS = (
    *data_schema.SPELLINGS,
    *(".".join(old) for old in (*_RENAMED, *_MESH_SIZES)),
    *("trainer.wandb", "trainer.fsdp_axis", "trainer.tensor_parallel_axes", "trainer.axis_resources"),
    "trainer.parameter_axis_resources",
)
_TRAINER = "trainer"
_MESH = ("trainer", "mesh")
_PROFILER = ("trainer", "profiler")
_WANDB = ("trainer", "wandb")
_TRACKER = ("trainer", "tracker")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A raw configuration in our spelling, and what its author should know."""

    tree: Tree
    warnings: tuple[str, ...] = ()

    @property
    def raw(self) -> dict[str, Any]:
        """The configuration as plain dicts, lists and scalars."""
        return self.tree.raw


def rewrite(*layers: Tree | Mapping[str, Any]) -> Rewritten:
    """The layers as one configuration in our spelling; the last wins. They are left as they are.

    Example: `rewrite({"data": {"train_urls": ["a"]}}, {"data": {"train_urls": ["b"]}}).raw` is `{"data": {"components":
    {"main": {"source": {"type": "url", "train_urls": ["b"]}, "cache_dir": "cache/"}}}}`.
    """
    warnings: list[str] = []
    whole = Tree()
    for layer in layers:
        own = layer.copy() if isinstance(layer, Tree) else Tree.of(layer)
        _rename(own, warnings)
        data_schema.make_way(whole, own, warnings)
        _make_way_for_tracker(whole, own)
        whole.overlay(own)
    data_schema.to_components(whole, warnings)
    refuse(whole)
    leave_out(whole, warnings)
    return Rewritten(tree=whole, warnings=tuple(dict.fromkeys(warnings)))


def _rename(tree: Tree, warnings: list[str]) -> None:
    """Gives every key of one layer the one name we use."""
    data_schema.rename(tree)
    if isinstance(tree.get(_PROFILER), bool):
        tree.wrap(_PROFILER, "enabled")
    _rename_wandb(tree)
    for old, new in _RENAMED.items():
        tree.move(old, new)
    _rename_mesh(tree)
    for old, new in _DEPRECATED.items():
        if tree.has(old):
            place = tree.place(old)
            warnings.append(
                f"{place} is deprecated: it is read as {'.'.join(new)} and will go. Write {new[-1]} instead."
            )
            tree.move(old, new)


def _rename_wandb(tree: Tree) -> None:
    """`wandb: {…}` is a tracker of that type; `wandb: null` is none."""
    value = tree.get(_WANDB)
    if value is True:
        tree.put(_WANDB, {}, like=_WANDB)
    elif value is not None and not isinstance(value, dict):
        raise ConfigError(
            Problem(
                found=f"{tree.place(_WANDB)} = {shown(value)}",
                needed="the settings of the tracker, such as {project: …}, or null for none",
                remedy="use null to do without W&B",
            )
        )
    if isinstance(tree.get(_WANDB), dict):
        tree.put((*_WANDB, "type"), "wandb", like=_WANDB)
    tree.move(_WANDB, _TRACKER)


def _rename_mesh(tree: Tree) -> None:
    """What Levanter's older schema says of parallelism, in the words of its mesh; each key replaces what was said."""
    if tree.has(_MESH) and tree.get(_MESH) is None:
        _put_whole(tree, _MESH, {}, like=_MESH)
    for old, new in _MESH_SIZES.items():
        if tree.has(old) and tree.get(old) is None:
            tree.put(old, 1, like=old)
        tree.move(old, new)
    rows = str(tree.get((*_MESH, "batch_axis_name")) or "batch")
    mappings: dict[str, tuple[Path, dict[str, Any]]] = {}
    for key in ("fsdp_axis", "tensor_parallel_axes", "parameter_axis_resources", "axis_resources"):
        old = (_TRAINER, key)
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
    for key in ("fsdp_axis", "tensor_parallel_axes", "parameter_axis_resources", "axis_resources"):
        tree.drop((_TRAINER, key))


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


def _make_way_for_tracker(whole: Tree, layer: Tree) -> None:
    """A tracker of another type replaces the one that is there; one of several is changed in its place."""
    new, present = layer.get(_TRACKER), whole.get(_TRACKER)
    kind = new.get("type") if isinstance(new, dict) else None
    if kind is None or layer.place(_TRACKER).whole:
        return
    if isinstance(present, dict) and present.get("type") not in (kind, None):
        whole.drop(_TRACKER)
    if isinstance(present, list):
        same = [index for index, item in enumerate(present) if isinstance(item, dict) and item.get("type") == kind]
        for index in same[:1]:
            for key, value in new.items():
                present[index][key] = value
                whole.places[*_TRACKER, str(index), key] = layer.place((*_TRACKER, key))
            layer.drop(_TRACKER)
