"""`trainer.mesh`: how many devices split what, from the config to a `Layout`.

In: sizes of the mesh's axes and which axes of arrays lie on them, in the words of Levanter. Out: how rows, parameters,
heads, MLPs and the vocabulary are split; None for one device. What the trainer cannot split so is refused.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from ponente.config import execution
from ponente.config.errors import RefusedError
from ponente.models.parameters import is_parameter, path_name
from ponente.ops.mesh import Layout

REPLICA_DCN, REPLICA, DATA, MODEL = "replica_dcn", "replica", "data", "model"
_AXES = (REPLICA_DCN, REPLICA, DATA, MODEL)  # from the slowest network to the fastest
_ROWS = (REPLICA_DCN, REPLICA, DATA)
_PIECE_BYTES = 1 << 28  # of an array that is gathered on a host
_SPLITTABLE = ("heads", "mlp", "vocab")  # by tensor parallelism
_ALIKE = {"heads": ("heads", "kv_heads")}  # what is split with it
Place = str | list[str] | None

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices as a grid, and what lies along its axes. -1 is what is left of the devices."""

    axes: dict[str, int] = execution(default_factory=dict)  # data (-1), replica (1), model (1)
    dcn_axes: dict[str, int] = execution(default_factory=dict)  # replica_dcn: between slices; -1 is their number
    batch_axis_name: str = execution("batch")
    compute_mapping: dict[str, Place] = execution(default_factory=dict)  # batch: replica_dcn, replica, data
    param_mapping: dict[str, Place] = execution(default_factory=dict)  # embed: data
    shared_mapping: dict[str, Place] = execution(default_factory=dict)  # heads, mlp, vocab: model

    @property
    def is_given(self) -> bool:
        """Whether more than one device is asked for."""
        return any(size != 1 for size in (*self.axes.values(), *self.dcn_axes.values()))

    def check(self) -> None:
        """Refuses axes and mappings that no step knows, before devices are touched."""
        for key, axes, known in (("axes", self.axes, _AXES), ("dcn_axes", self.dcn_axes, (REPLICA_DCN,))):
            for name, size in axes.items():
                if name not in known:
                    raise RefusedError(
                        f"found trainer.mesh.{key}.{name}; needed {', '.join(known)}. Rename it, or remove it."
                    )
                if size < 1 and size != -1:
                    raise RefusedError(
                        f"found trainer.mesh.{key}.{name}: {size}; needed 1 or more, or -1 for all that are left."
                    )
        for name, place in self.compute_mapping.items():
            if name != self.batch_axis_name or not set(_listed(place)) <= set(_ROWS):
                raise RefusedError(
                    f"found trainer.mesh.compute_mapping {name}: {place}; needed {self.batch_axis_name} alone, over "
                    f"{', '.join(_ROWS)}. Remove it; heads, mlp and vocab are split by shared_mapping."
                )
        for name, place in self.param_mapping.items():
            if not set(_listed(place)) <= set(_ROWS):
                raise RefusedError(
                    f"found trainer.mesh.param_mapping {name}: {place}; needed one of {', '.join(_ROWS)}. Use "
                    f"shared_mapping for {MODEL}."
                )
        for name, place in self.shared_mapping.items():
            if set(_listed(place)) - {MODEL} or name not in _SPLITTABLE:
                raise RefusedError(
                    f"found trainer.mesh.shared_mapping {name}: {place}; needed {', '.join(_SPLITTABLE)} on {MODEL}. "
                    "Remove it, or put it into param_mapping."
                )

    def sizes(self, devices: int) -> dict[str, int]:
        """The size of every axis on so many devices of one slice; of `axes`, one alone may be -1."""
        slices = {name: 1 if size == -1 else size for name, size in self.dcn_axes.items()}
        wanted = {REPLICA_DCN: 1, REPLICA: 1, DATA: -1, MODEL: 1} | self.axes | slices
        open_axes = [name for name, size in wanted.items() if size == -1]
        if DATA not in self.axes and len(open_axes) > 1:
            open_axes.remove(DATA)
            wanted[DATA] = 1
        fixed = math.prod(size for size in wanted.values() if size != -1)
        if len(open_axes) > 1 or fixed > devices or (open_axes and devices % fixed):
            shown = ", ".join(f"{name}: {size}" for name, size in wanted.items())
            fitting = ", ".join(str(size) for size in range(1, devices + 1) if devices % size == 0)
            raise RefusedError(
                f"found trainer.mesh.axes {{{shown}}}, whose sizes make {fixed}, on {devices} devices; needed at most "
                f"one -1, and a product of the others of at most {devices}, or one of {fitting} where one is -1. "
                "Change them."
            )
        return {name: devices // fixed if size == -1 else size for name, size in wanted.items()}

    def layout(self, devices: Sequence[jax.Device]) -> Layout | None:
        """The layout on these devices; None where one of them is all that is used.

        CPUs are split only where sizes are given: several of them are there to try a mesh out.
        """
        self.check()
        if devices[0].platform == "cpu" and not self.is_given and jax.process_count() == 1:
            return None
        sizes = self.sizes(len(devices))
        used = math.prod(sizes.values())
        idle = {device.process_index for device in devices} - {device.process_index for device in devices[:used]}
        if idle:
            raise RefusedError(
                f"found a mesh of {used} of {len(devices)} devices, which leaves process {min(idle)} none; needed one "
                "with devices of each. Enlarge trainer.mesh.axes, or start fewer processes."
            )
        return None if used == 1 else self._on(_mesh(sizes, devices[:used]), sizes)

    def planned_layout(self, devices: int) -> Layout | None:
        """The layout on so many devices, which need not be there: shapes can be split by it, but nothing be run."""
        self.check()
        sizes = self.sizes(devices)
        mesh = AbstractMesh(tuple(sizes[name] for name in _AXES), _AXES, axis_types=(AxisType.Auto,) * len(_AXES))
        return None if mesh.size == 1 else self._on(mesh, sizes)

    def _on(self, mesh: Mesh | AbstractMesh, sizes: Mapping[str, int]) -> Layout:
        split = [name for name, place in ({one: MODEL for one in _SPLITTABLE} | self.shared_mapping).items() if place]
        gathered = {"embed": DATA} | self.param_mapping
        return Layout(
            mesh=mesh,
            rows=_ROWS,
            gathered={name: _listed(place) for name, place in gathered.items()},
            tensor=frozenset(part for name in split for part in _ALIKE.get(name, (name,)) if sizes[MODEL] > 1),
        )


def _listed(place: Place) -> tuple[str, ...]:
    return () if place is None else (place,) if isinstance(place, str) else tuple(place)


def _mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device]) -> Mesh:
    """Devices of one slice beside each other; replica_dcn alone reaches from one slice, or process, to the others."""
    shape = tuple(sizes[name] for name in _AXES)
    types = (AxisType.Auto,) * len(_AXES)
    if sizes[REPLICA_DCN] > 1 or devices[0].platform == "cpu":
        return Mesh(np.array(devices).reshape(shape), _AXES, axis_types=types)
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)  # any sizes on a torus
    return Mesh(grid, _AXES, axis_types=types)


def specs_of(layout: Layout, parameters: Any) -> Any:
    """How each parameter of a model is split; refuses a model that the mesh does not divide."""

    def spec(parameter: Any) -> Any:
        for name, size in parameter.sizes.items():
            if name in layout.tensor and size % layout.tensor_parts:
                told = next((one for one, parts in _ALIKE.items() if name in parts), name)
                raise RefusedError(
                    f"found {size} {name} for trainer.mesh.axes.model: {layout.tensor_parts}; needed a number that "
                    f"divides them. Set it to {math.gcd(size, layout.tensor_parts)}, or shared_mapping.{told}: null."
                )
        return layout.spec(parameter.axes, parameter.shape)

    specs = jax.tree.map(spec, parameters, is_leaf=is_parameter)
    _warn_of_copies(layout, parameters, specs)
    return specs


def _warn_of_copies(layout: Layout, parameters: Any, specs: Any) -> None:
    """Says so where devices that could split parameters hold all of them, because they do not divide them."""
    parts = math.prod(layout.mesh.shape[axis] for axis in {axis for over in layout.gathered.values() for axis in over})
    leaves = zip(jax.tree.leaves(parameters, is_leaf=is_parameter), jax.tree.leaves(specs), strict=True)
    sizes = [(math.prod(one.shape), layout.is_gathered(spec)) for one, spec in leaves]
    whole, copied = sum(size for size, _ in sizes), sum(size for size, is_split in sizes if not is_split)
    if parts > 1 and copied > 0.05 * whole:
        _say_copied(round(100 * copied / whole), parts)


@cache
def _say_copied(percent: int, devices: int) -> None:
    logger.warning(
        "%d%% of the parameters are whole on each of %d devices, which do not divide them along the axes of "
        "trainer.mesh.param_mapping: memory for them is not shared",
        percent,
        devices,
    )


def batch_sharding(layout: Layout | None) -> jax.sharding.Sharding:
    """Where the rows of a batch go."""
    if layout is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return layout.sharding(layout.batch_spec)


def state_shardings(layout: Layout, specs: Any, shapes: Any) -> Any:
    """How a state lies on devices: what the optimizer keeps for a parameter, as the parameter; all else on each."""
    of_parameters = {path_name(path): spec for path, spec in jax.tree_util.tree_flatten_with_path(specs)[0]}

    def sharding(path: Any, leaf: Any) -> Any:
        words = path_name(path).split(".")
        ends = (".".join(words[start:]) for start in range(len(words)))
        spec = next((of_parameters[name] for name in ends if name in of_parameters), PartitionSpec())
        return layout.sharding(spec if len(spec) == len(leaf.shape) else PartitionSpec())

    return jax.tree_util.tree_map_with_path(sharding, shapes)


def placed(tree: Any, shardings: Any) -> Any:
    """Arrays that every process has on its host, or on devices, as they are to lie on devices of all processes."""

    def place(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
        is_there = isinstance(array, jax.Array) and not array.is_fully_addressable
        if is_there or sharding.is_fully_addressable:
            moved: jax.Array = jax.device_put(array, sharding)
            return moved
        return jax.make_array_from_callback(array.shape, sharding, lambda index: np.asarray(array)[index])

    return jax.tree.map(place, tree, shardings)


def whole_on_host(tree: Any) -> Any:
    """Arrays that lie on devices of several processes, as NumPy's in the first process; all must call it.

    They come in pieces, for which there is room beside a model that only fits when it is split.
    """

    def whole(array: jax.Array) -> Any:
        step = max(1, _PIECE_BYTES * len(array) // max(1, array.nbytes))
        made = np.empty(array.shape, array.dtype) if jax.process_index() == 0 else None
        for first in range(0, len(array), step):
            piece = multihost_utils.process_allgather(array[first : first + step], tiled=True)
            if made is not None:
                made[first : first + step] = piece
        return made

    return jax.tree.map(whole, tree)


def check_rows(layout: Layout | None, sizes: Sequence[int], microbatch: int | None) -> None:
    """Refuses batches that the devices, or the rows that each takes at once, do not divide, and names the nearest."""
    parts = 1 if layout is None else layout.row_parts
    for size in sizes:
        if size % parts:
            below, above = size // parts * parts, -(-size // parts) * parts
            near = " or ".join(str(one) for one in (below, above) if one)
            raise RefusedError(
                f"found a batch of {size} rows for {parts} devices that split it; needed one that they divide. Set "
                f"trainer.train_batch_size to {near}."
            )
        here = size // parts
        if microbatch is not None and (microbatch > here or here % microbatch):
            fitting = max(rows for rows in range(1, min(here, microbatch) + 1) if here % rows == 0)
            each = "" if parts == 1 else f", {here} on each of {parts} devices"
            raise RefusedError(
                f"found trainer.per_device_parallelism: {microbatch} for a batch of {size} rows{each}; needed one that "
                f"divides it. Set {fitting}, or -1 for the whole batch at once."
            )
