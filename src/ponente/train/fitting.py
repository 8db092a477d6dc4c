"""Whether a step fits into the memory of its devices, and how many rows at once do.

In: programs of a step, compiled for a number of rows at once, and the memory of a device. Out: the largest number whose
program fits, found in three compilations at most; an error with both in GiB where none does, before the first step.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ponente.config.errors import RefusedError
from ponente.train.memory import machine_memory
from ponente.train.offload import is_on_host

GIB = 1 << 30
_KEY = "trainer.per_device_parallelism"
_USABLE = 0.98  # of a device's memory: free places are not all in one piece

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes of one device."""

    state: int  # what is there before and after it, with its batch
    temporary: int  # while it runs

    @classmethod
    def of(cls, program: jax.stages.Compiled) -> "Need":
        """By the compiler's own account."""
        found = program.memory_analysis()
        if found is None:  # a backend that keeps none
            return cls(0, 0)
        new = max(0, found.output_size_in_bytes - found.alias_size_in_bytes)
        return cls(found.argument_size_in_bytes, found.temp_size_in_bytes + new)

    @property
    def total(self) -> int:
        return self.state + self.temporary

    def __str__(self) -> str:
        return f"{self.total / GIB:.2f} GiB ({self.state / GIB:.2f} of state, {self.temporary / GIB:.2f} while it runs)"


def device_memory() -> int:
    """Bytes that a run may use of each of its devices; those of CPUs share the memory of the machine."""
    here = jax.local_devices()
    stats = here[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] * _USABLE)
    return machine_memory() // len(here)


def check_state(arrays: Any) -> None:
    """Refuses a state, given by shapes and shardings, that no device has room for, before it is made."""
    leaves = jax.tree.leaves(arrays)
    if any(map(is_on_host, leaves)):
        _check_host(leaves)
    found = sum(bytes_of_part(array) for array in leaves if not is_on_host(array))
    if found > (there := device_memory()):
        raise RefusedError(
            f"found a state (weights and what the optimizer keeps) of {found / GIB:.2f} GiB for each device, which has "
            f"{there / GIB:.2f}; needed one that fits. Split it over more devices (trainer.mesh), set "
            "trainer.offload_optimizer: true where there is more memory on the host, or train a smaller model."
        )


def _check_host(arrays: Sequence[Any]) -> None:
    """Refuses a state of which the host has no room for its own part, and for the copy that becomes a checkpoint."""
    here = [bytes_of_part(array) * len(array.sharding.addressable_devices) for array in arrays]
    own = sum(size for size, array in zip(here, arrays, strict=True) if is_on_host(array))
    if own + sum(here) > (there := machine_memory()):
        raise RefusedError(
            f"found trainer.offload_optimizer: true for {own / GIB:.2f} GiB that the optimizer keeps and "
            f"{sum(here) / GIB:.2f} of a checkpoint, on a host with {there / GIB:.2f}; needed room for both. Split the "
            "model over more hosts (trainer.mesh), or train a smaller one."
        )


def bytes_of_part(array: Any) -> int:
    """Of an array, given by shape and sharding, what one device holds."""
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    size: int = array.dtype.itemsize
    for number in shape:
        size *= number
    return size


def check_step(need: Need, rows: int | None, memory: int | None = None) -> None:
    """Refuses a step that no device has room for, before it is run.

    Args:
        rows: of a device at once; None: as many as it has.
        memory: of a device; None: of one of these.
    """
    there = device_memory() if memory is None else memory
    if need.total > there:
        below = "" if rows is None else f" below {rows}"
        fewer = "" if rows == 1 else f"Set {_KEY}: auto, or a number{below}; or "
        raise RefusedError(
            f"found a step that needs {need} of each device, which has {there / GIB:.2f} GiB; needed one that fits. "
            f"{fewer}{'Set' if rows == 1 else 'set'} model.gradient_checkpointing: true, or "
            "trainer.offload_optimizer: true, or split the model over more devices (trainer.mesh)."
        )


def largest_that_fits(
    sizes: Sequence[int], need: Callable[[int], Need], accumulators: int, memory: int
) -> tuple[int, dict[int, Need]]:
    """The largest of the sizes whose step fits, and what was found out on the way, in three compilations at most.

    (Before it refuses, it tries the smallest.)

    What a step takes while it runs grows evenly with the rows at once, and where they are not all, gradients are added
    up: so the first program tells where to look, and the second tells it better.

    Args:
        sizes: rows at once that can be had, the largest being all of them.
        need: compiles the step for a size.
        accumulators: bytes that added gradients take, in all sizes but the largest.
    """
    ordered = sorted(sizes)
    all_rows = ordered[-1]
    found = {all_rows: need(all_rows)}
    if found[all_rows].total <= memory or len(ordered) == 1:
        return _checked(all_rows, found, memory)
    state, highest = found[all_rows].state, found[all_rows].temporary + accumulators
    slope, fixed = found[all_rows].temporary / all_rows, float(accumulators)

    def predicted(among: Sequence[int]) -> int | None:
        fitting = [size for size in among if state + fixed + slope * size <= memory]
        return max(fitting, default=None)

    second = predicted(ordered[:-1]) or ordered[0]
    found[second] = need(second)
    slope = max(0.0, (highest - found[second].temporary) / (all_rows - second))
    fixed = found[second].temporary - slope * second
    if found[second].total <= memory:
        third = predicted([size for size in ordered if second < size < all_rows])
    else:
        smaller = [size for size in ordered if size < second]
        third = predicted(smaller) or (smaller[0] if smaller else None)
    if third is not None:
        found[third] = need(third)
    if all(one.total > memory for one in found.values()) and ordered[0] not in found:
        found[ordered[0]] = need(ordered[0])
    fitting = [size for size, one in found.items() if one.total <= memory]
    return _checked(max(fitting, default=min(found)), found, memory)


def _checked(size: int, found: dict[int, Need], memory: int) -> tuple[int, dict[int, Need]]:
    check_step(found[size], size, memory)
    logger.info(
        "%s: auto takes %d rows at once: a step needs %s of %.2f on each device (%d compiled)",
        *(_KEY, size, found[size], memory / GIB, len(found)),
    )
    return size, found
