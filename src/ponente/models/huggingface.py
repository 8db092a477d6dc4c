"""Weights by the names that Hugging Face gives them, both ways, a tensor at a time.

In: a family's table of where each of our parameters lies in a Hugging Face model. Out: our arrays from theirs, or
theirs from ours. The letters behind a parameter's name (`w_q_DNH`) are its axes; a table says how they lie over there
("NH,D": a matrix with N·H rows and D columns), and this module turns one into the other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import UserError
from ponente.models.parameters import LAYERS, Parameter, is_parameter, path_name

Tree = TypeVar("Tree")
Read = Callable[[str], NDArray[Any]]


@dataclass(frozen=True)
class HfWeight:
    """Where a parameter lies: a name, with {} for the layer's number, and the axes of its dimensions.

    Several of ours may share one tensor: `part` is which of how many equal parts of its last dimension.
    """

    name: str
    axes: str
    part: tuple[int, int] = (0, 1)

    def from_theirs(self, tensor: NDArray[Any], letters: str, sizes: Mapping[str, int]) -> NDArray[Any]:
        """Our array, from theirs."""
        number, count = self.part
        groups = self.axes.split(",")
        expected = [prod(sizes[letter] for letter in group) for group in groups]
        expected[-1] *= count
        if list(tensor.shape) != expected:
            raise UserError(
                f"found {self.name} of shape {list(tensor.shape)}; needed {expected}, as the config says. Give the "
                "config.json that belongs to the weights."
            )
        width = tensor.shape[-1] // count
        own = tensor[..., number * width : (number + 1) * width]
        order = "".join(groups)
        return own.reshape([sizes[letter] for letter in order]).transpose([order.index(letter) for letter in letters])

    def to_theirs(self, array: NDArray[Any], letters: str) -> NDArray[Any]:
        """Their tensor (or part of one), from our array."""
        groups = self.axes.split(",")
        sizes = dict(zip(letters, array.shape, strict=True))
        turned = array.transpose([letters.index(letter) for letter in "".join(groups)])
        return turned.reshape([prod(sizes[letter] for letter in group) for group in groups])


def import_weights(parameters: Tree, table: Mapping[str, HfWeight], read: Read, dtype: Any = np.float32) -> Tree:
    """Our arrays, read one tensor at a time; the tree is one of `Parameter`s."""

    def one(path: tuple[Any, ...], parameter: Parameter) -> NDArray[Any]:
        name = path_name(path)
        weight, letters = table[name], letters_of(name)
        is_stacked = parameter.axes[0] == LAYERS
        shape = parameter.shape[1:] if is_stacked else parameter.shape
        sizes = dict(zip(letters, shape, strict=True))
        if not is_stacked:
            return weight.from_theirs(read(weight.name), letters, sizes).astype(dtype)
        array = np.empty(parameter.shape, dtype)
        for layer in range(parameter.shape[0]):
            array[layer] = weight.from_theirs(read(weight.name.format(layer)), letters, sizes)
        return array

    arrays: Tree = jax.tree_util.tree_map_with_path(one, parameters, is_leaf=is_parameter)
    return arrays


def export_weights(model: Tree, parameters: Tree, table: Mapping[str, HfWeight]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Their tensors by name, one at a time, layer by layer."""
    arrays = {path_name(path): array for path, array in jax.tree_util.tree_flatten_with_path(model)[0]}
    leaves = jax.tree_util.tree_flatten_with_path(parameters, is_leaf=is_parameter)[0]
    stacked = {path_name(path): parameter.axes[0] == LAYERS for path, parameter in leaves}
    by_tensor: dict[str, list[str]] = {}
    for name in arrays:
        by_tensor.setdefault(table[name].name, []).append(name)
    for tensor, names in by_tensor.items():
        names = sorted(names, key=lambda name: table[name].part)
        layers = arrays[names[0]].shape[0] if stacked[names[0]] else 1
        for layer in range(layers):
            parts = [
                table[name].to_theirs(
                    np.asarray(arrays[name][layer] if stacked[name] else arrays[name]), letters_of(name)
                )
                for name in names
            ]
            yield tensor.format(layer), parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def letters_of(name: str) -> str:
    """The axes of a parameter, which its name ends in: `blocks.attention.w_q_DNH` has D, N and H."""
    return name.rpartition("_")[2]
