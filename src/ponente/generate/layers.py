"""A model and its cache with their layers apart, each an array of its own.

Stacked layers are for training: decoding from a stack, every step would copy each layer's weights and cache out of it.
In: a model or a cache. Out: the same with `Layers` in place of stacked arrays, and back. `together` belongs inside a
compiled function with unrolled layers, where the stack that it makes is never built: XLA takes a slice of a stack to be
the array that went into it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ponente.models.lm import KeyValues, LanguageModel
from ponente.models.parameters import LAYERS, is_parameter

Tree = TypeVar("Tree")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layers:
    """One array for each layer."""

    parts: tuple[Array, ...]

    @classmethod
    def of(cls, stacked: Array) -> "Layers":
        return cls(tuple(stacked[number] for number in range(stacked.shape[0])))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReadyModel:
    """A model that was made ready for decoding; where one is used often, this is made once."""

    arrays: Any  # the model's tree, with Layers in it


def ready(model: LanguageModel | ReadyModel, dtype: DTypeLike | None = None) -> ReadyModel:
    """A model for decoding: layers apart, weights on the device and of a type, by default their own."""
    arrays = model.arrays if isinstance(model, ReadyModel) else model
    cast = jax.tree.map(lambda one: jnp.asarray(one, _type_for(one, dtype)), arrays)
    return ReadyModel(cast if isinstance(model, ReadyModel) else _take_apart(cast))


def _type_for(array: Any, dtype: DTypeLike | None) -> DTypeLike:
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    return array.dtype if dtype is None or not is_float else dtype


@jax.jit
def _take_apart(model: Any) -> Any:
    parameters = replace(model.config, scan_layers=False).parameters(model.head_DV().shape[1])
    specs, structure = jax.tree.flatten(parameters, is_leaf=is_parameter)
    arrays = jax.tree.leaves(model)
    apart = [Layers.of(array) if spec.axes[0] == LAYERS else array for spec, array in zip(specs, arrays, strict=True)]
    return jax.tree.unflatten(structure, apart)


def apart(past: KeyValues) -> KeyValues:
    """A cache with its layers apart."""
    keys: Any = Layers.of(past.keys)
    values: Any = Layers.of(past.values)
    return replace(past, keys=keys, values=values)


def together(tree: Tree) -> Tree:
    """A model or a cache with its layers stacked."""
    stack = partial(jax.tree.map, _stacked, is_leaf=lambda one: isinstance(one, Layers))
    whole: Tree = stack(tree)
    return whole


def _stacked(one: Any) -> Any:
    return jnp.stack(one.parts) if isinstance(one, Layers) else one
