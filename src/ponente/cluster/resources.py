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

    def __post_init__(self) -> None:
        if self.num_cpus < 1:
            raise ValueError(f"found num_cpus={self.num_cpus}; needed at least 1")
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
        return self.num_cpus


@dataclass(frozen=True, kw_only=True)
class GpuConfig:
    """GPUs of one kind; `GpuConfig(gpu_count=8, gpu_type="H200")`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    gpu_count: int = 1
    gpu_type: str | None = None

    @property
    def device(self) -> str:
        """The name that a rate card prices an hour of."""
        return self.gpu_type or "gpu"

    @property
    def device_count(self) -> int:
        """How many such devices the step holds."""
        return self.gpu_count


@dataclass(frozen=True, kw_only=True)
class TpuPodConfig:
    """Slices of a TPU pod; `TpuPodConfig(tpu_type="v4-128", slice_count=2)`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    tpu_type: str
    slice_count: int = 1

    @property
    def device(self) -> str:
        """The name that a rate card prices an hour of: one slice."""
        return self.tpu_type

    @property
    def device_count(self) -> int:
        """How many such devices the step holds."""
        return self.slice_count


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """A size as people write it: "8GB" is 8,000,000,000 and "8GiB" 8,589,934,592."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"found memory={text!r}; needed a number and a unit, such as '8GB' or '512MiB'")
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


Resources = CpuOnly | GpuConfig | TpuPodConfig
