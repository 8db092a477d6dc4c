"""How arrays lie on several devices, and the collectives of a step, all of which are named here.

Rows of a batch are split over some axes of a mesh. A parameter is split over the same devices along one of its axes,
and is made whole just before its layer is run (`Split.whole`): FSDP. Heads, inner columns of MLPs and columns of the
vocabulary may be split over one more axis, whose devices see the same rows (`Tensor`): tensor parallelism. A step is
written for one device's part of everything; nothing is moved but where these functions say so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ponente.ops.kept import WHOLE

Tree = TypeVar("Tree")

Axes = tuple[str, ...]  # names, of a parameter's axes or of a mesh's


class Split(eqx.Module):
    """A device's part of a parameter, which is cut along one axis; counted from the last, for layers may be stacked."""

    values: Array
    axis: int = eqx.field(static=True)
    over: Axes = eqx.field(static=True)

    def whole(self) -> Array:
        """All parts side by side. Its gradient is summed over the devices in float32, and each keeps its part."""
        named: Array = checkpoint_name(_gathered(self.values, self.over, self.values.ndim + self.axis), WHOLE)
        return named


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(values: Array, over: Axes, axis: int) -> Array:
    made: Array = lax.all_gather(values, over, axis=axis, tiled=True)
    return made


def _gathered_backward(over: Axes, axis: int, _: None, by_whole: Array) -> tuple[Array]:
    total = lax.psum_scatter(by_whole.astype(jnp.float32), over, scatter_dimension=axis, tiled=True)
    return (total.astype(by_whole.dtype),)


_gathered.defvjp(lambda values, over, axis: (_gathered(values, over, axis), None), _gathered_backward)


def whole(tree: Tree) -> Tree:
    """The tree with every `Split` made whole."""
    made: Tree = jax.tree.map(lambda leaf: leaf.whole() if is_split(leaf) else leaf, tree, is_leaf=is_split)
    return made


def is_split(leaf: object) -> bool:
    return isinstance(leaf, Split)


def is_any_split(tree: Any) -> bool:
    return any(map(is_split, jax.tree.leaves(tree, is_leaf=is_split)))


@dataclass(frozen=True)
class Tensor:
    """The axis of a mesh over which heads, MLPs or columns of the vocabulary are split; None: they are whole."""

    axis: str | None = None
    names: frozenset[str] = frozenset()  # of what is split

    def of(self, name: str) -> "Tensor":
        """The same, if that is split."""
        return self if name in self.names else UNSPLIT

    def enter(self, x: Array) -> Array:
        """x, the same on all devices, where each goes on with its own heads or columns: gradients are summed there."""
        return x if self.axis is None else _enter(x, self.axis)

    def leave(self, x: Array) -> Array:
        """The sum of what each device made of its heads or columns."""
        return x if self.axis is None else _leave(x, self.axis)

    def sum(self, x: Array) -> Array:
        """For what is never differentiated."""
        return x if self.axis is None else lax.psum(x, self.axis)

    def max(self, x: Array) -> Array:
        return x if self.axis is None else lax.pmax(x, self.axis)

    def first(self, count: int) -> Array | int:
        """The number of this device's first of `count` heads or columns, among those of all devices."""
        return 0 if self.axis is None else lax.axis_index(self.axis) * count

    @property
    def size(self) -> int:
        return 1 if self.axis is None else lax.axis_size(self.axis)


UNSPLIT = Tensor()


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _enter(x: Array, axis: str) -> Array:
    return x


_enter.defvjp(lambda x, axis: (x, None), lambda axis, _, by_x: (lax.psum(by_x, axis),))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _leave(x: Array, axis: str) -> Array:
    total: Array = lax.psum(x, axis)
    return total


_leave.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, by_sum: (by_sum,))


@dataclass(frozen=True)
class Layout:
    """A mesh, and what is split over which of its axes.

    Args:
        rows: over which the rows of a batch are split, all of them.
        gathered: for names of a parameter's axes, over which axes of the mesh it is split until it is used.
        tensor: names of axes that stay split over the axis `model`.
    """

    mesh: Mesh | AbstractMesh  # an abstract one for plans, of devices that are not there
    rows: Axes
    gathered: Mapping[str, Axes]
    tensor: frozenset[str] = frozenset()
    tensor_axis: str = "model"

    @property
    def row_parts(self) -> int:
        """Into how many parts a batch is split."""
        return self._size(self.rows)

    @property
    def tensor_parts(self) -> int:
        return self.mesh.shape.get(self.tensor_axis, 1) if self.tensor else 1

    def inside(self) -> Tensor:
        """What a device's part of a step is told."""
        return Tensor(self.tensor_axis, self.tensor) if self.tensor_parts > 1 else UNSPLIT

    def spec(self, axes: Sequence[str], shape: Sequence[int]) -> PartitionSpec:
        """Which axes of a parameter are split: along one for FSDP, where devices divide it, and for tensors."""
        parts: list[Any] = []
        is_gathered = False
        for name, size in zip(axes, shape, strict=True):
            if name in self.tensor and self.tensor_parts > 1:
                parts.append(self.tensor_axis)
            elif (
                not is_gathered and self._size(over := self.gathered.get(name, ())) > 1 and size % self._size(over) == 0
            ):
                parts.append(over)
                is_gathered = True
            else:
                parts.append(None)
        return PartitionSpec(*parts)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    @property
    def batch_spec(self) -> PartitionSpec:
        """Of arrays whose first axis are the rows of a batch."""
        return PartitionSpec(self.rows)

    def parts(self, tree: Tree, specs: Any) -> Tree:
        """Of a device's part of each parameter, what says how it is made whole."""

        def part(values: Array, spec: PartitionSpec) -> Any:
            axis, over = self._cut(spec)
            return Split(values, axis, over) if over else values

        made: Tree = jax.tree.map(part, tree, specs)
        return made

    def summed(self, gradients: Tree, specs: Any) -> Tree:
        """Each device's gradients of its parts, summed over all rows: over what making whole has not summed over.

        Of what is not split over `model`, its devices have the same gradient but for a GPU's order of additions; the
        mean keeps their copies from drifting apart.
        """

        def total(gradient: Array, spec: PartitionSpec) -> Array:
            _, done = self._cut(spec)
            left = tuple(axis for axis in self.rows if axis not in done and self.mesh.shape[axis] > 1)
            gradient = lax.psum(gradient, left) if left else gradient
            is_copied = self.tensor_parts > 1 and self.tensor_axis not in spec
            return lax.pmean(gradient, self.tensor_axis) if is_copied else gradient

        made: Tree = jax.tree.map(total, gradients, specs)
        return made

    def is_gathered(self, spec: PartitionSpec) -> bool:
        """Whether a parameter is split until it is used."""
        return bool(self._cut(spec)[1])

    def over_rows(self, x: Array) -> Array:
        """The sum over the devices among which rows are split."""
        total: Array = lax.psum(x, self.rows)
        return total

    def _cut(self, spec: PartitionSpec) -> tuple[int, Axes]:
        """The axis, counted from the last, along which a parameter is split until it is used, and over what."""
        for number, entry in enumerate(spec):
            over = (entry,) if isinstance(entry, str) else tuple(entry or ())  # JAX writes ("data",) as "data"
            if over and over != (self.tensor_axis,):
                return number - len(spec), over
        return 0, ()

    def _size(self, axes: Axes) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)
