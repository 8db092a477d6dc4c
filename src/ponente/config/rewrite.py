"""Either Levanter schema to ours: one pure function for files and flags alike.

In: raw layers, a file's first, then one a flag. Out: one raw tree in our spelling, with warnings. Each layer is first
brought to one spelling, so that `--model.seq_len` wins over a file's `max_seq_len`; the layers are laid over each
other; only then is the shape changed, for whether `data` holds one dataset or a mixture shows in the whole alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponente.config import data_schema, mesh_schema
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
_DEPRECATED: dict[Path, Path] = {("optimizer", "cooldown"): ("optimizer", "decay")}
SPELLINGS = (
    *data_schema.SPELLINGS,
    *mesh_schema.SPELLINGS,
    *(".".join(old) for old in _RENAMED),
    "trainer.wandb",
)
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
    mesh_schema.rename(tree)
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
