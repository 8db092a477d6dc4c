"""What a step asks of the machines."""

import pytest

from ponente.cluster import CpuOnly, GpuConfig, TpuPodConfig
from ponente.cluster.resources import parse_bytes
from ponente.config import Kind
from ponente.config.fields import class_kind, field_specs


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8_000_000_000),
        ("8GiB", 8_589_934_592),
        ("512MiB", 536_870_912),
        ("1.5 GB", 1_500_000_000),
        ("100", 100),
        ("2k", 2_000),
        ("1tb", 10**12),
        (" 4 Gi ", 4 * 2**30),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size
    assert CpuOnly(memory=text).memory_bytes == size


@pytest.mark.parametrize("text", ["", "much", "8 XB", "-1GB", "8GB8", "GB"])
def test_a_size_that_is_none_is_refused_when_the_step_is_made(text: str) -> None:
    with pytest.raises(ValueError, match=r"found memory=.*needed a number and a unit"):
        CpuOnly(memory=text)


def test_at_least_one_core_must_be_asked_for() -> None:
    with pytest.raises(ValueError, match="found num_cpus=0; needed at least 1"):
        CpuOnly(num_cpus=0)


def test_each_resource_says_which_device_a_rate_card_prices() -> None:
    assert [
        (one.device, one.device_count)
        for one in (
            CpuOnly(num_cpus=4),
            GpuConfig(gpu_count=8, gpu_type="H200"),
            GpuConfig(),
            TpuPodConfig(tpu_type="v4-128", slice_count=2),
        )
    ] == [("cpu", 4), ("H200", 8), ("gpu", 1), ("v4-128", 2)]
    assert CpuOnly().memory_bytes == 0


@pytest.mark.parametrize("cls", [CpuOnly, GpuConfig, TpuPodConfig])
def test_resources_are_execution_as_a_whole(cls: type) -> None:
    assert class_kind(cls) is Kind.EXECUTION
    assert {spec.kind for spec in field_specs(cls)} == {Kind.EXECUTION}
