"""What steps ask for, in Ray's words."""

from typing import Any

import pytest

from ponente.cluster import CpuOnly, GpuConfig, TpuPodConfig

pytest.importorskip("ray")
from ponente.cluster.ray.resources import host_options, task_options


@pytest.mark.parametrize(
    ("resources", "options"),
    [
        (None, {"num_cpus": 1}),
        (CpuOnly(num_cpus=3, memory="2GB"), {"num_cpus": 3, "memory": 2_000_000_000}),
        (GpuConfig(gpu_count=2), {"num_cpus": 1, "num_gpus": 2}),
        (GpuConfig(gpu_count=8, gpu_type="H100"), {"num_cpus": 1, "num_gpus": 8, "accelerator_type": "H100"}),
        (TpuPodConfig(tpu_type="v4-8"), {"num_cpus": 1, "resources": {"TPU": 4, "TPU-v4-8-head": 1}}),
        (CpuOnly(num_cpus=3, host_count=2), {"num_cpus": 0}),  # the process that leads
        (TpuPodConfig(tpu_type="v4-128"), {"num_cpus": 0}),
    ],
)
def test_a_step_asks_for_what_it_needs(resources: Any, options: dict[str, Any]) -> None:
    assert task_options(resources) == options


@pytest.mark.parametrize(
    ("resources", "options"),
    [
        (CpuOnly(num_cpus=3, host_count=2), {"num_cpus": 3}),
        (GpuConfig(gpu_count=8, host_count=2), {"num_cpus": 1, "num_gpus": 8}),
        (TpuPodConfig(tpu_type="v4-128"), {"num_cpus": 0, "resources": {"TPU": 4}}),
    ],
)
def test_each_host_of_several_is_asked_for_its_share(resources: Any, options: dict[str, Any]) -> None:
    assert host_options(resources) == options
