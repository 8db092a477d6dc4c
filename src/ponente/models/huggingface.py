"""Weights by the names that Hugging Face gives them, both ways, a tensor at a time.

In: a family's table of where each of our parameters lies in a Hugging Face model. Out: our arrays from theirs, or
theirs from ours. The letters behind a parameter's name (`w_q_DNH`) are its axes; a table says how they lie over there
("NH,D": a matrix with N·H rows and D columns), and this module turns one into the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import UserError
from ponente.models.parameters import LAYERS, Parameter, is_parameter, path_name

Tree = TypeVar("Tree")
PARTS = "*"  # among the axes of a tensor that several parameters share: where it is divided among them
VOCAB = "vocab"  # the axis of which a file may hold fewer or more than a model has
Read = Callable[[str], NDArray[Any]]


@dataclass(frozen=True)
class HfWeight:
    """Where a parameter lies: a name, with {} for the layer's number, and the axes of its dimensions.

    Several of ours may share one tensor: `part` is which of how many equal parts. They lie one after the other in its
    last dimension, or where the axes have a `*`: in "N*H,D" each head has a part of each.
    """

    name: str
    axes: str
    part: tuple[int, int] = (0, 1)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of their whole tensor, for axes of these sizes."""
        return _joined(self._groups(), {**sizes, PARTS: self.part[1]})

    def from_theirs(self, tensor: NDArray[Any], letters: str, sizes: Mapping[str, int]) -> NDArray[Any]:
        """Our array, from theirs."""
        number, count = self.part
        expected = self.shape(sizes)
        if tensor.shape != expected:
            raise UserError(
                f"found {self.name} of shape {list(tensor.shape)}; needed {list(expected)}, as the config says. Give "
                "the config.json that belongs to the weights."
            )
        order = "".join(self._groups())
        every = tensor.reshape([count if letter == PARTS else sizes[letter] for letter in order])
        own: NDArray[Any] = every.transpose([order.index(letter) for letter in PARTS + letters])[number]
        return own

    def to_theirs(self, parts: Sequence[NDArray[Any]], letters: str) -> NDArray[Any]:
        """Their whole tensor, from our arrays that are its parts, in their order."""
        every = np.stack(parts) if len(parts) > 1 else parts[0][None]
        axes = PARTS + letters
        turned = every.transpose([axes.index(letter) for letter in "".join(self._groups())])
        return turned.reshape(_joined(self._groups(), dict(zip(axes, every.shape, strict=True))))

    def _groups(self) -> list[str]:
        """The axes of each dimension, with that of the parts."""
        *first, last = self.axes.split(",")
        return [*first, last] if PARTS in self.axes else [*first, PARTS + last]


def numbered(table: Mapping[str, HfWeight], count: int) -> dict[str, HfWeight]:
    """The same for parameters that are not stacked, with {} for the number in both names: `mlps.{}.w_up_DF`."""
    return {
        name.format(number): replace(weight, name=weight.name.format(number))
        for name, weight in table.items()
        for number in range(count)
    }


def _joined(groups: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(prod(sizes[letter] for letter in group) for group in groups)


@dataclass(frozen=True)
class HfTensor:
    """One of their tensors: its name and shape, and how it is made of a model's arrays when its turn comes."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]  # our parameters, in the order of their parts
    layer: int | None
    vocab_dimension: int | None  # which of its dimensions counts the vocabulary


def hf_tensors(parameters: Any, table: Mapping[str, HfWeight]) -> list[HfTensor]:
    """Their tensors that a model of these parameters has, in the order of the model, layer by layer."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(parameters, is_parameter)[0]}
    sources: dict[str, list[str]] = {}
    for name in leaves:
        sources.setdefault(table[name].name, []).append(name)
    plain: list[HfTensor] = []
    by_layer: dict[int, list[HfTensor]] = {}
    for tensor, names in sources.items():
        names = sorted(names, key=lambda name: table[name].part)
        parameter, weight = leaves[names[0]], table[names[0]]
        is_stacked = parameter.axes[0] == LAYERS
        sizes = dict(zip(letters_of(names[0]), parameter.shape[is_stacked:], strict=True))
        vocab = [letter for letter, axis in zip(sizes, parameter.axes[is_stacked:], strict=True) if axis == VOCAB]
        dimension = weight.axes.split(",").index(vocab[0]) if vocab else None
        for layer in range(parameter.shape[0]) if is_stacked else [None]:
            found = HfTensor(tensor.format(layer), weight.shape(sizes), tuple(names), layer, dimension)
            (plain if layer is None else by_layer.setdefault(layer, [])).append(found)
    return plain + [one for layer in sorted(by_layer) for one in by_layer[layer]]


def import_weights(parameters: Tree, table: Mapping[str, HfWeight], read: Read, dtype: Any = np.float32) -> Tree:
    """Our arrays, read one tensor at a time; the tree is one of `Parameter`s.

    Args:
        dtype: of the arrays; None: as each tensor (of stacked ones, that of the first layer) is.
    """

    def one(path: tuple[Any, ...], parameter: Parameter) -> NDArray[Any]:
        name = path_name(path)
        weight, letters = table[name], letters_of(name)
        is_stacked = parameter.axes[0] == LAYERS
        shape = parameter.shape[1:] if is_stacked else parameter.shape
        sizes = dict(zip(letters, shape, strict=True))
        first = weight.from_theirs(read(weight.name.format(0)), letters, sizes)
        if not is_stacked:
            return np.array(first, dtype)  # a copy, never a view of a file
        array = np.empty(parameter.shape, first.dtype if dtype is None else dtype)
        array[0] = first
        for layer in range(1, parameter.shape[0]):
            array[layer] = weight.from_theirs(read(weight.name.format(layer)), letters, sizes)
        return array

    arrays: Tree = jax.tree_util.tree_map_with_path(one, parameters, is_leaf=is_parameter)
    return arrays


def export_weights(model: Tree, parameters: Tree, table: Mapping[str, HfWeight]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Their tensors by name, one at a time, layer by layer."""
    arrays = arrays_by_name(model)
    for tensor in hf_tensors(parameters, table):
        yield tensor.name, export_tensor(arrays, tensor, table)


def export_tensor(arrays: Mapping[str, Any], tensor: HfTensor, table: Mapping[str, HfWeight]) -> NDArray[Any]:
    """One of their tensors, of our arrays; of a stacked array, a layer alone is copied to the host.

    Rows of a vocabulary beyond those that the tensor has are left out.
    """
    found = [arrays[name] if tensor.layer is None else arrays[name][tensor.layer] for name in tensor.sources]
    first = tensor.sources[0]
    whole = table[first].to_theirs([np.asarray(array) for array in found], letters_of(first))
    if tensor.vocab_dimension is None:
        return whole
    everything = (slice(None),) * tensor.vocab_dimension
    return whole[(*everything, slice(tensor.shape[tensor.vocab_dimension]))]


def arrays_by_name(model: Any) -> dict[str, Any]:
    """A model's arrays by path: `blocks.attention.w_q_DNH`."""
    return {path_name(path): array for path, array in jax.tree_util.tree_flatten_with_path(model)[0]}


def letters_of(name: str) -> str:
    """The axes of a parameter, which its name ends in: `blocks.attention.w_q_DNH` has D, N and H."""
    return name.rpartition("_")[2]
