"""Steps compiled for slices of TPUs that are not here. With libtpu installed, by their own compiler."""

from pathlib import Path

import jax
import pytest
from unit.train.test_estimate import config

from ponente.train import estimate, topology
from ponente.train.estimate import estimate_lines, need_on
from ponente.train.fitting import GIB
from ponente.train.hardware import hardware


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("v5p-8", "v5p:2x2x1"),
        ("v5p-16", "v5p:2x2x2"),
        ("v5p-32", "v5p:2x2x4"),
        ("v5p-128", "v5p:4x4x4"),
        ("v4-64", "v4:2x4x4"),
        ("v5litepod-16", "v5e:4x4"),
        ("v6e-8", "v6e:2x4"),
        ("v5e-256", "v5e:16x16"),
        ("8xh100", None),
    ],
)
def test_slices_have_the_sides_that_their_sizes_are_sold_with(name: str, sides: str | None) -> None:
    assert hardware(name).topology == sides


def last_line(folder: Path, name: str) -> str:
    return list(estimate_lines(config(folder, "tiny"), name))[-1]


def test_without_the_compiler_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "has_compiler", lambda: False)
    assert last_line(tmp_path, "v5e-8").startswith("compiled for it     not tried: pip install 'ponente[tpu]'")
    assert last_line(tmp_path, "v5e-1").startswith("cost")
    assert last_line(tmp_path, "8xh100").startswith("cost")


def test_the_step_is_compiled_for_the_devices_of_the_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "has_compiler", lambda: True)
    monkeypatch.setattr(estimate, "devices_of", lambda hardware: jax.devices()[: hardware.devices])
    given = config(tmp_path, "tiny", "--trainer.mesh.axes", "{data: 8}")
    planned = estimate.estimate(given, hardware("v5e-8")).memory
    assert need_on(given, hardware("v5e-8")).state == pytest.approx(planned.weights + planned.optimizer, rel=0.05)
    assert "a step needs 0." in last_line(tmp_path, "v5e-8")

    def refuse(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nmore")

    monkeypatch.setattr(estimate, "devices_of", refuse)
    told = "refused by the compiler of TPUs: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm."
    assert last_line(tmp_path, "v5e-8").endswith(told)


@pytest.mark.skipif(not topology.has_compiler(), reason="libtpu, the compiler of TPUs, is not installed")
@pytest.mark.parametrize("axes", ["{data: -1}", "{data: -1, model: 2}", "{replica: 2, data: -1, model: 4}"])
def test_tpus_compile_steps_of_meshes_in_parts_with_their_kernel(axes: str, tmp_path: Path) -> None:
    """A loop over parts of a batch, and axes that the torus does not have, were refused by TPUs' own tools."""
    flags = ("--model.max_seq_len", "256", "--trainer.per_device_parallelism", "2", "--trainer.mesh.axes", axes)
    with_heads = ("--model.num_heads", "8", "--model.num_kv_heads", "8", "--model.hidden_dim", "512")
    need = need_on(config(tmp_path, "tiny", *flags, *with_heads, rows=512), hardware("v5p-128"))
    assert 0 < need.total < GIB
