"""Packages that a step asks for: known where they are installed, refused where they are not."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

from ponente.cluster import CpuOnly, Environment, GpuConfig, TpuPodConfig
from ponente.config.errors import RefusedError
from ponente.executor import ExecutorOptions, ExecutorStep, run_steps


def nothing(config: Any) -> None:
    """A step that does nothing."""


def test_what_is_installed_is_not_missing() -> None:
    version = importlib.metadata.version("msgspec")
    assert Environment(packages=(f"msgspec=={version}", "msgspec>=0.1")).missing() == []
    assert Environment(packages=("msgspec<0.1", "no-such-package==1")).missing() == [
        "msgspec<0.1",
        "no-such-package==1",
    ]


def test_an_extra_stands_for_its_packages() -> None:
    found = Environment(extras=("cloud", "wandb"), packages=("x==1",)).requirements
    assert found[0] == "x==1" and {"gcsfs", "s3fs"} <= set(found)
    assert any(one.startswith("wandb<") or one.startswith("wandb>") for one in found)
    assert not any("extra" in one for one in found)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"extras": ("clouds",)}, "needed one of .*cloud"), ({"packages": ("a b c",)}, "found package 'a b c'")],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        Environment(**given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": Environment(packages=("no-such-package==1",))}, "pip install no-such-package==1.*--cluster"),
        ({"resources": CpuOnly(host_count=2)}, "found 2 hosts in the resources of needy"),
        ({"resources": TpuPodConfig(tpu_type="v4-128")}, "found 16 hosts"),
    ],
)
def test_a_machine_alone_refuses_what_it_has_not(changes: dict[str, Any], words: str, tmp_path: Any) -> None:
    step = ExecutorStep(name="needy", fn=nothing, **changes)
    with pytest.raises(RefusedError, match=words):
        run_steps([step], ExecutorOptions(prefix=str(tmp_path), launcher="driver"))


@pytest.mark.parametrize(
    ("resources", "hosts", "devices"),
    [
        (TpuPodConfig(tpu_type="v4-128", slice_count=2), 32, 2),
        (TpuPodConfig(tpu_type="v4-8"), 1, 1),
        (TpuPodConfig(tpu_type="v6e-8"), 1, 1),
        (TpuPodConfig(tpu_type="v6e-16"), 4, 1),
        (GpuConfig(gpu_count=8, host_count=3), 3, 24),
        (CpuOnly(num_cpus=4, host_count=2), 2, 8),
    ],
)
def test_hosts_and_devices_are_counted(resources: Any, hosts: int, devices: int) -> None:
    assert (resources.host_count, resources.device_count) == (hosts, devices)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CpuOnly(host_count=0),
        lambda: GpuConfig(gpu_count=0),
        lambda: TpuPodConfig(tpu_type="v4"),
        lambda: TpuPodConfig(tpu_type="v4-8", slice_count=0),
    ],
)
def test_sizes_that_are_none_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="needed"):
        make()
