"""Looking into a run: norms and histograms of gradients, updates, weights, every so many steps.

Norms of gradients and updates are by-products of every step, fetched only when they are due. Those of weights are
computed after the steps at which they are due, and histograms in a program of their own with such steps, so that the
steps between cost nothing for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ponente.config.errors import RefusedError
from ponente.config.fields import Kind
from ponente.models.parameters import path_name
from ponente.train.norms import STACKED, Squares, squares
from ponente.train.trackers.tracker import Histogram

Target = Literal["grads", "params", "updates"]
_PREFIXES = {"grads": "grad", "params": "params", "updates": "updates"}
_BINS = 64


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """What is watched, and how often."""

    config_kind = Kind.OBSERVATION

    watch_targets: tuple[Target, ...] | str = ("grads", "params")
    include_norms: bool = True
    include_per_parameter_norms: bool = True
    include_histograms: bool = False
    split_scan_layers: bool = True  # each layer on its own
    interval: int = 10

    @property
    def targets(self) -> list[str]:
        """What is watched; a text with commas is understood, as Levanter does."""
        named = self.watch_targets.split(",") if isinstance(self.watch_targets, str) else self.watch_targets
        targets = [str(target).strip() for target in named]
        for target in targets:
            if target not in _PREFIXES:
                raise RefusedError(
                    f"found trainer.watch.watch_targets: {target}; needed some of {', '.join(_PREFIXES)}. Change it."
                )
        return targets

    def is_due(self, step: int) -> bool:
        """Whether what is watched is told at this step."""
        is_on = self.interval > 0 and (self.include_norms or self.include_histograms)
        return is_on and bool(self.targets) and step % self.interval == 0

    def norms(self, **trees: Any) -> dict[str, Any]:
        """What the norms of those of the trees, by what they are (`grads=…`), that are watched are made of."""
        if not self.include_norms or self.interval < 1:
            return {}
        return self._each(lambda prefix, tree: {f"{prefix}/norm": squares(tree)}, trees)

    def histograms(self, **trees: Any) -> dict[str, Any]:
        """What the histograms of what is watched are made of; traced with steps at which they are due."""
        return self._each(self._histograms, trees)

    def _each(self, measure: Callable[[str, Any], dict[str, Any]], trees: Mapping[str, Any]) -> dict[str, Any]:
        watched: dict[str, Any] = {}
        for target in self.targets:
            if target in trees:
                watched |= measure(_PREFIXES[target], trees[target])
        return watched

    def _histograms(self, prefix: str, tree: Any) -> dict[str, Array]:
        found = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = path_name(path)
            flat = leaf.astype(jnp.float32).reshape(-1)
            low, high = flat.min(), jnp.maximum(flat.max(), flat.min() + 1e-12)
            counts = (
                jnp.zeros(_BINS, jnp.int32)
                .at[jnp.clip(((flat - low) / (high - low) * _BINS).astype(jnp.int32), 0, _BINS - 1)]
                .add(1)
            )
            sums = jnp.stack([low, high, flat.sum(), jnp.square(flat).sum()])
            found[f"{prefix}/histogram/{name}"] = jnp.concatenate([sums, counts.astype(jnp.float32)])
        return found

    def metrics_of(self, watched: Mapping[str, Any]) -> dict[str, float | Histogram]:
        """What a step watched, as trackers take it: one number a name; layers as `blocks.0.…`."""
        metrics: dict[str, float | Histogram] = {}
        for name, found in watched.items():
            metrics |= self._told(name, found) if isinstance(found, Squares) else {name: _histogram(found)}
        return metrics

    def _told(self, prefix: str, found: Squares) -> dict[str, float]:
        by_name = found.by_name()
        told = {f"{prefix}/total": _root(sum(sums.sum() for sums in by_name.values()))}
        if not self.include_per_parameter_norms:
            return told
        for name, sums in by_name.items():
            if self.split_scan_layers and name.startswith(STACKED):
                inside = name.removeprefix(STACKED)
                told |= {f"{prefix}/{STACKED}{layer}.{inside}": _root(one) for layer, one in enumerate(sums)}
            else:
                told[f"{prefix}/{name}"] = _root(sums.sum())
        return told


def _root(square: Any) -> float:
    return float(np.sqrt(square))


def _histogram(found: Any) -> Histogram:
    low, high, total, of_squares, *counts = np.asarray(found).tolist()
    edges = tuple(np.linspace(low, high, len(counts) + 1).tolist())
    return Histogram(edges=edges, counts=tuple(counts), sum=total, sum_squares=of_squares)
