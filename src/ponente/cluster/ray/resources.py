"""What a step asks for, in Ray's words. Autoscaling is Ray's own: what is asked for and not there, it may start."""

from dataclasses import replace
from typing import Any

from ponente.cluster.resources import CpuOnly, GpuConfig, Resources, TpuPodConfig


def task_options(resources: Resources | None) -> dict[str, Any]:
    """The options of the actor that runs a step.

    A step over several hosts is one process that leads, which needs next to nothing, and a placement group that it
    asks for itself.
    """
    if resources is not None and resources.host_count > 1:
        return {"num_cpus": 0}
    if isinstance(resources, CpuOnly):
        return {"num_cpus": resources.num_cpus, **({"memory": resources.memory_bytes} if resources.memory else {})}
    if isinstance(resources, GpuConfig):
        kind = {"accelerator_type": resources.gpu_type} if resources.gpu_type else {}
        return {"num_cpus": 1, "num_gpus": resources.gpu_count, **kind}
    if isinstance(resources, TpuPodConfig):
        return {"num_cpus": 1, "resources": {"TPU": resources.chips_per_host, resources.head: 1}}
    return {"num_cpus": 1}


def host_options(resources: Resources) -> dict[str, Any]:
    """The options of the actor on each host of a step over several."""
    if isinstance(resources, TpuPodConfig):
        return {"num_cpus": 0, "resources": {"TPU": resources.chips_per_host}}
    return task_options(replace(resources, host_count=1))


def without_accelerators(resources: Resources | None) -> dict[str, str]:
    """Variables of a process that asked for cores alone, or leads others: Ray hides no accelerator from it."""
    if isinstance(resources, CpuOnly) or (resources is not None and resources.host_count > 1):
        return {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    return {}
