"""Sums of squares of gradients and weights: one pass gives the norm of each layer, each parameter and all of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ponente.models.parameters import path_name

STACKED = "blocks."  # how the names of stacked layers begin


def squares(tree: Any) -> dict[str, Array]:
    """The sum of the squares of each array by its name, in the order of the tree; of stacked layers one for each."""
    return {path_name(path): _sum(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def total(squares_by_name: dict[str, Array]) -> Array:
    """The sum of the squares of all arrays together."""
    return sum((one.sum() for one in squares_by_name.values()), start=jnp.zeros(()))


def norm(squares_by_name: dict[str, Array]) -> Array:
    """The norm of all arrays together."""
    return jnp.sqrt(total(squares_by_name))


def _sum(name: str, leaf: Array) -> Array:
    first = 1 if name.startswith(STACKED) else 0
    return jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=tuple(range(first, leaf.ndim)))
