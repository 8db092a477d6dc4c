import os

import jax
import pytest

from ponente.train.devices import describe_devices, prepare_devices
from ponente.train.mesh import MeshConfig
from ponente.train.quantization import QuantizationConfig
from ponente.train.trainer import TrainerConfig


@pytest.mark.parametrize(("is_deterministic", "times"), [(True, 1), (False, 0)])
def test_deterministic_runs_ask_xla_for_it(is_deterministic: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    for _ in range(2):
        prepare_devices(TrainerConfig(deterministic=is_deterministic))
    assert (jax.config.jax_persistent_cache_enable_xla_caches == "none") == is_deterministic
    assert os.environ["XLA_FLAGS"].count("--xla_gpu_deterministic_ops=true") == times
    assert "--xla_force_host_platform_device_count=8" in os.environ["XLA_FLAGS"]


@pytest.mark.parametrize(("has_fp8", "times"), [(True, 1), (False, 0)])
def test_products_in_8_bits_are_left_to_the_library(has_fp8: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    for _ in range(2):
        prepare_devices(TrainerConfig(quantization=QuantizationConfig(fp8=has_fp8)))
    assert os.environ["XLA_FLAGS"].count("--xla_gpu_enable_triton_gemm=false") == times


def test_a_run_takes_most_of_a_gpu_unless_the_user_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    for given in names:
        for name in names:
            monkeypatch.setenv(name, "0.5")
            monkeypatch.delenv(name)
        prepare_devices(TrainerConfig())
        assert os.environ.pop(names[0]) == "0.93"
        monkeypatch.setenv(given, "0.5")
        prepare_devices(TrainerConfig())
        assert {name: os.environ[name] for name in names if name in os.environ} == {given: "0.5"}


def test_devices_are_told_in_words() -> None:
    assert describe_devices(None) == "1 of 8 cpu"
    layout = MeshConfig(axes={"model": 2}).layout(jax.devices())
    assert describe_devices(layout) == "8 cpu (data 4, model 2)"
