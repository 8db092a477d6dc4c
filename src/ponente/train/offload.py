"""`trainer.offload_optimizer`: what the optimizer keeps lies in the host's memory, and visits devices for its update.

In: a state's shapes, or arrays inside a step. Out: the same, placed. Single numbers, such as counts, stay on devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax import Array
from jax.sharding import Sharding, SingleDeviceSharding

from ponente.config.errors import RefusedError
from ponente.train.state import TrainState

HOST = "pinned_host"


def check_offload() -> None:
    """Refuses devices that cannot reach the host's memory."""
    device = jax.local_devices()[0]
    kinds = sorted(memory.kind for memory in device.addressable_memories())
    if HOST not in kinds:
        raise RefusedError(
            f"found trainer.offload_optimizer: true on {device.device_kind}, whose memories are {', '.join(kinds)}; "
            f"needed one of {HOST}. Set it to false, or update JAX."
        )


def is_on_host(array: Any) -> bool:
    """Whether an array, or its shape with a sharding, lies in the host's memory."""
    return array.sharding is not None and array.sharding.memory_kind == HOST


def on_host(shapes: TrainState) -> TrainState:
    """The shapes of a state whose optimizer's arrays lie in the host's memory, each with its place."""

    def with_place(shape: Any, kind: str) -> jax.ShapeDtypeStruct:
        here: Sharding = shape.sharding or SingleDeviceSharding(jax.devices()[0])
        place = here.with_memory_kind(kind) if shape.ndim else here
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place)

    kept = jax.tree.map(lambda shape: with_place(shape, HOST), shapes.optimizer)
    others = jax.tree.map(lambda shape: with_place(shape, "device"), replace(shapes, optimizer=None))
    state: TrainState = replace(others, optimizer=kept)
    return state


def on_device(kept: Any) -> Any:
    """Inside a step: what the optimizer keeps, brought from the host."""
    return jax.tree.map(lambda array: jax.device_put(array, jax.memory.Space.Device) if array.ndim else array, kept)


def made_on_host(make: Callable[..., Any], places: Any, *given: Any) -> Any:
    """What a function makes, one array after the other, so that no device holds more than one of them.

    Args:
        places: where each array lies in the end.
    """

    def made(number: int, place: Sharding) -> Array:
        on_device = place.with_memory_kind("device")
        array = jax.jit(lambda *given: jax.tree.leaves(make(*given))[number], out_shardings=on_device)(*given)
        moved: Array = jax.device_put(array, place)
        return moved

    leaves, structure = jax.tree.flatten(places)
    return jax.tree.unflatten(structure, [made(number, place) for number, place in enumerate(leaves)])
