"""Parameters before they are arrays: shape, names of axes, and how they begin.

In: a tree of `Parameter`s, which a family makes of its config. Out: arrays, their shapes alone, or their axes' names. A
parameter's first values follow from the seed, its path and, for stacked layers, the layer's number, and so from nothing
that changes with the mesh, the order of layers or whether they are scanned.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

LAYERS = "layers"  # the first axis of what is stacked

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Parameter:
    """One array of a model: sizes by name of axis, and how it begins.

    Example: `Parameter({"embed": 512, "mlp": 2048}, std=0.02)`
    """

    sizes: dict[str, int]
    std: float = 0.0  # of a normal distribution; with 0 all values are `mean`
    mean: float = 0.0
    last: float | None = None  # of the last of its last axis; None: as the others

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def stacked(self, layers: int) -> "Parameter":
        """The same parameter of so many layers, in one array."""
        return Parameter({LAYERS: layers, **self.sizes}, self.std, self.mean, self.last)


def is_parameter(leaf: object) -> bool:
    return isinstance(leaf, Parameter)


def stacked(tree: Tree, layers: int) -> Tree:
    """A layer's parameters as those of so many layers."""
    whole: Tree = jax.tree.map(lambda parameter: parameter.stacked(layers), tree, is_leaf=is_parameter)
    return whole


def initialize(tree: Tree, seed: int, dtype: DTypeLike = jnp.float32) -> Tree:
    """Arrays with first values."""
    root = jax.random.key(seed)
    arrays: Tree = jax.tree_util.tree_map_with_path(
        lambda path, parameter: _initial(parameter, jax.random.fold_in(root, _number(path_name(path))), dtype),
        tree,
        is_leaf=is_parameter,
    )
    return arrays


def _initial(parameter: Parameter, key: Array, dtype: DTypeLike) -> Array:
    if parameter.std == 0:
        values = jnp.full(parameter.shape, parameter.mean, dtype)
        return values if parameter.last is None else values.at[..., -1].set(parameter.last)
    if parameter.axes[0] != LAYERS:
        return _normal(key, parameter.shape, parameter.std, dtype)
    keys = jax.vmap(lambda layer: jax.random.fold_in(key, layer))(jnp.arange(parameter.shape[0]))
    return jax.vmap(lambda one: _normal(one, parameter.shape[1:], parameter.std, dtype))(keys)


def _normal(key: Array, shape: tuple[int, ...], std: float, dtype: DTypeLike) -> Array:
    return (jax.random.normal(key, shape, jnp.float32) * std).astype(dtype)


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def path_name(path: tuple[Any, ...]) -> str:
    """`blocks.attention.w_q_DNH`, of a path in a tree."""
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def abstract(tree: Tree, dtype: DTypeLike = jnp.float32) -> Tree:
    """Shapes and types without values."""
    shapes: Tree = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, dtype), tree, is_leaf=is_parameter)
    return shapes


def count(tree: object) -> int:
    """How many numbers the parameters of a tree hold."""
    leaves = jax.tree.leaves(tree, is_leaf=is_parameter)
    return sum(_product(leaf.shape) for leaf in leaves if hasattr(leaf, "shape"))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
