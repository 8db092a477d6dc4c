"""Sums of squares of gradients and weights: one pass gives the norm of each layer, each parameter and all of them."""

import re
from collections.abc import Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ponente.models.parameters import path_name

STACKED = "blocks."  # how the names of stacked layers begin
_SMALL, _LARGE = 1 << 14, 1 << 20  # numbers


class Squares(eqx.Module):
    """Sums of the squares of a tree's arrays, one behind the other: of stacked layers one for each.

    They leave a device as one array, for each number on its own would be a kernel, whatever little it has to do.
    """

    sums_N: Array
    counts: tuple[tuple[str, int], ...] = eqx.field(static=True)  # in their order: a name, and how many sums it has

    def by_name(self) -> dict[str, Any]:
        """The sums of each array, on the host."""
        ends = np.cumsum([count for _, count in self.counts])
        parts = np.split(np.asarray(self.sums_N), ends[:-1])
        return dict(zip((name for name, _ in self.counts), parts, strict=True))


def squares(tree: Any) -> Squares:
    """The sums of the squares of all arrays of a tree."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    alike: dict[Any, list[str]] = {}
    for name, leaf in leaves.items():
        alike.setdefault(_kind(name, leaf), []).append(name)
    sums, counts = [], list[tuple[str, int]]()
    for names in alike.values():
        first = leaves[names[0]]
        if names[0].startswith(STACKED):
            sums.append(_sums(first))
            counts.append((names[0], len(first)))
        else:
            sums.append(_sums(jnp.stack(_of_one_shape([leaves[name] for name in names]))))
            counts += [(name, 1) for name in names]
    return Squares(jnp.concatenate(sums), tuple(counts))


def _kind(name: str, leaf: Array) -> Hashable:
    """The same for arrays whose squares are added up by one kernel: a small one costs more to begin than to run.

    They are one parameter of several layers that could not be stacked: `connections.3.static_CM` and
    `connections.4.static_CM`. Such are split over devices alike, so nothing is moved to bring them together.
    """
    if name.startswith(STACKED) or leaf.size > _LARGE:
        return name
    of_any_layer = re.sub(r"\.\d+\.", ".*.", name)
    return of_any_layer, leaf.dtype, leaf.ndim if leaf.size <= _SMALL else leaf.shape


def _of_one_shape(arrays: list[Array]) -> list[Array]:
    """Arrays of as many axes, with zeros behind each."""
    largest = np.max([array.shape for array in arrays], axis=0)
    return [
        jnp.pad(array, [(0, most - size) for most, size in zip(largest, array.shape, strict=True)]) for array in arrays
    ]


def norm(squares_of_all: Squares) -> Array:
    """The norm of all arrays together."""
    return jnp.sqrt(squares_of_all.sums_N.sum())


def _sums(arrays: Array) -> Array:
    """One for each of the first axis."""
    return jnp.sum(jnp.square(arrays.astype(jnp.float32)), axis=tuple(range(1, arrays.ndim)))
