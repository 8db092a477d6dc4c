"""Accelerators by name: how many devices, how much memory and how many operations a second each has, and its price.

Prices are what clouds list for an hour of one device on demand, rounded, as of 2025; `--price` gives your own.
"""

import re
from dataclasses import dataclass

import jax

from ponente.config.errors import RefusedError
from ponente.train.fitting import GIB, device_memory
from ponente.train.throughput import peak_flops


@dataclass(frozen=True)
class Hardware:
    """Some devices of a kind."""

    name: str
    devices: int
    memory: int  # bytes of one device
    peak: float | None  # operations a second of one, dense bfloat16; None: not known
    price: float | None  # dollars an hour of one
    is_here: bool = False  # what `memory` says is what a run gets
    topology: str | None = None  # of a slice of TPUs, as their compiler calls it: `v5p:4x4x4`


@dataclass(frozen=True)
class _Kind:
    device: str  # as devices of the kind call themselves, or a part of that
    memory_gib: float
    price: float
    cores: int = 1  # of a chip, where names count cores
    torus: str | None = None  # of TPUs, the name of their network
    dimensions: int = 2  # of the network


_GPUS = {
    "h200": _Kind("h200", 141e9 / GIB, 3.8),
    "h100": _Kind("h100", 80, 3.0),
    "b200": _Kind("b200", 180e9 / GIB, 6.0),
    "a100-80": _Kind("a100", 80, 1.8),
    "a100-40": _Kind("a100", 40, 1.3),
    "l40s": _Kind("l40s", 48, 1.0),
    "rtx4090": _Kind("rtx 4090", 24, 0.4),
}
_TPUS = {
    "v4": _Kind("tpu v4", 32, 3.22, cores=2, torus="v4", dimensions=3),
    "v5p": _Kind("tpu v5p", 95, 4.2, cores=2, torus="v5p", dimensions=3),
    "v5litepod": _Kind("tpu v5", 16, 1.2, torus="v5e"),
    "v5e": _Kind("tpu v5", 16, 1.2, torus="v5e"),
    "v6e": _Kind("tpu v6", 32, 2.7, torus="v6e"),
}


def hardware(name: str) -> Hardware:
    """Devices by name: `8xh100` (or `h100`) for GPUs, `v5p-128` for a slice of TPUs.

    A v4 or v5p slice is named by its cores, of which a chip has two; a device is a chip.
    """
    wanted = name.lower().replace(" ", "").replace("×", "x")
    if gpu := re.fullmatch(r"(?:(\d+)x)?(.+)", wanted):
        count, kind = int(gpu[1] or 1), _GPUS.get(gpu[2])
        if kind is not None and count > 0:
            return _made(name, count, kind)
    if tpu := re.fullmatch(r"(.+)-(\d+)", wanted):
        chip = _TPUS.get(tpu[1])
        if chip is not None and int(tpu[2]) >= chip.cores and int(tpu[2]) % chip.cores == 0:
            return _made(name, int(tpu[2]) // chip.cores, chip)
    raise RefusedError(
        f"found hardware {name}; needed a number of GPUs, such as 8xh100 ({', '.join(_GPUS)}), or a slice of TPUs, "
        f"such as v5p-128 ({', '.join(_TPUS)}). Name one of them."
    )


def hardware_here() -> Hardware:
    """The devices of this process."""
    devices = jax.devices()
    kind = devices[0].device_kind
    return Hardware(kind, len(devices), device_memory(), peak_flops(kind), None, is_here=True)


def _made(name: str, devices: int, kind: _Kind) -> Hardware:
    memory, peak = int(kind.memory_gib * GIB), peak_flops(kind.device)
    topology = None if kind.torus is None else f"{kind.torus}:{_sides(devices, kind.dimensions)}"
    return Hardware(name, devices, memory, peak, kind.price, topology=topology)


def _sides(devices: int, dimensions: int) -> str:
    """The sides of a slice, as near to each other as doubling gives: 64 in three dimensions are 4x4x4, 32 are 2x4x4."""
    sides = [1] * dimensions
    while devices % 2 == 0:
        sides[sides.index(min(sides))] *= 2
        devices //= 2
    sides[0] *= devices
    return "x".join(str(side) for side in (sorted(sides) if min(sides) > 1 else sides))
