"""What a step asks of the machines: values that change where it runs, never what it makes."""

import re
from dataclasses import dataclass
from typing import ClassVar

from ponente.config import Kind


@dataclass(frozen=True, kw_only=True)
class CpuOnly:
    """Cores and memory of one machine; `CpuOnly(num_cpus=4, memory="8GB")`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    num_cpus: int = 1
    memory: str | None = None
    host_count: int = 1

    def __post_init__(self) -> None:
        _check_positive(num_cpus=self.num_cpus, host_count=self.host_count)
        if self.memory is not None:
            parse_bytes(self.memory)

    @property
    def memory_bytes(self) -> int:
        """The memory asked for; 0 where nothing was said."""
        return parse_bytes(self.memory) if self.memory is not None else 0

    @property
    def device(self) -> str:
        """The name that a rate card prices an hour of."""
        return "cpu"

    @property
    def device_count(self) -> int:
        """How many such devices the step holds."""
        return self.num_cpus * self.host_count


@dataclass(frozen=True, kw_only=True)
class GpuConfig:
    """GPUs of one kind, so many on each host; `GpuConfig(gpu_count=8, gpu_type="H200", host_count=2)`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    gpu_count: int = 1
    gpu_type: str | None = None
    host_count: int = 1

    def __post_init__(self) -> None:
        _check_positive(gpu_count=self.gpu_count, host_count=self.host_count)

    @property
    def device(self) -> str:
        """The name that a rate card prices an hour of."""
        return self.gpu_type or "gpu"

    @property
    def device_count(self) -> int:
        """How many such devices the step holds."""
        return self.gpu_count * self.host_count


@dataclass(frozen=True, kw_only=True)
class TpuPodConfig:
    """Slices of a TPU pod; `TpuPodConfig(tpu_type="v4-128", slice_count=2)`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    tpu_type: str
    slice_count: int = 1

    def __post_init__(self) -> None:
        _check_positive(slice_count=self.slice_count)
        generation, _, size = self.tpu_type.partition("-")
        if not size.isdigit() or int(size) < 1 or not generation.startswith("v"):
            raise ValueError(f"found tpu_type={self.tpu_type!r}; needed a generation and a size, such as 'v4-128'")

    @property
    def chip_count(self) -> int:
        """Of one slice: v2 to v5p are named by their cores, of which a chip has two, later ones by their chips."""
        generation, _, size = self.tpu_type.partition("-")
        return int(size) if generation in _NAMED_BY_CHIPS else max(1, int(size) // 2)

    @property
    def chips_per_host(self) -> int:
        """Of one machine: four, or all eight of a small slice of the generations that have such machines."""
        is_one_host = self.tpu_type.partition("-")[0] in _NAMED_BY_CHIPS and self.chip_count <= 8
        return self.chip_count if is_one_host else min(4, self.chip_count)

    @property
    def hosts_per_slice(self) -> int:
        """Machines of one slice."""
        return -(-self.chip_count // self.chips_per_host)

    @property
    def host_count(self) -> int:
        """Machines of all slices."""
        return self.hosts_per_slice * self.slice_count

    @property
    def head(self) -> str:
        """The resource that Ray gives the first machine of a slice."""
        return f"TPU-{self.tpu_type}-head"

    @property
    def device(self) -> str:
        """The name that a rate card prices an hour of: one slice."""
        return self.tpu_type

    @property
    def device_count(self) -> int:
        """How many such devices the step holds."""
        return self.slice_count


_NAMED_BY_CHIPS = ("v5litepod", "v5e", "v6e")


def _check_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"found {name}={count}; needed at least 1")


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """A size as people write it: "8GB" is 8,000,000,000 and "8GiB" 8,589,934,592."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"found memory={text!r}; needed a number and a unit, such as '8GB' or '512MiB'")
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


Resources = CpuOnly | GpuConfig | TpuPodConfig
