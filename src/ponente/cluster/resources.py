"""What a step asks of the machines: values that change where it runs, never what it makes."""

from dataclasses import dataclass
from typing import ClassVar

from ponente.config import Kind


@dataclass(frozen=True, kw_only=True)
class CpuOnly:
    """Cores and memory of one machine; `CpuOnly(num_cpus=4, memory="8GB")`."""

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    num_cpus: int = 1
    memory: str | None = None

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


Resources = CpuOnly | GpuConfig | TpuPodConfig
