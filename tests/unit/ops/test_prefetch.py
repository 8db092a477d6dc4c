"""What kernels ask Hopper's copy engine for, seen in what they are lowered to; whether it helps, benchmarks say."""

import importlib
import logging

import jax
import jax.numpy as jnp
import pytest

from ponente.ops import prefetch
from ponente.ops.mixing import Debt, Mixed, Mixture, Way, together
from ponente.ops.mixing_gradients_kernel import mixed_gradients

FETCHED, SUMMED_IN_LANES = "cp.async.bulk.prefetch.L2.global", "shfl.sync.bfly"
TWO_PRODUCTS = "fma.rn.f32 $0, low, $3, $5"


def lowered(capability: float, width: int, dtype: jax.typing.DTypeLike, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program for a GPU of such a capability that makes gradients of a mixture, and those left by the next."""
    monkeypatch.setattr("ponente.ops.prefetch.capability", lambda: capability)
    try:
        gpu_info = importlib.import_module("jax._src.pallas.triton.gpu_info")
    except ImportError:  # before JAX 0.11 nobody asks
        pass
    else:
        info = gpu_info.GpuInfo(gpu_version=None, arch_name=str(capability), compute_capability=int(10 * capability))
        monkeypatch.setattr(gpu_info, "get_gpu_info", lambda: info)

    (taking, _), ways = together([4, 4], ends=False), (Way(),) * 4

    def by_weights(weights: jax.Array, states: tuple[jax.Array, ...]) -> jax.Array:
        debt = Debt(jnp.zeros((1, 64, 4, 21)), states[:4])
        mixture, by = Mixture(weights, states, None, None), Mixed(states[:4], states, (debt,))
        return mixed_gradients(mixture, (), jnp.zeros((64, 1)), by, ways, taking)[0].weights_BSCM

    row = jax.ShapeDtypeStruct((1, 64, width), dtype)
    weights = jax.ShapeDtypeStruct((1, 64, 4, 20), jnp.float32)
    return jax.jit(by_weights).trace(weights, (row,) * 20).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("capability", "is_fetched"), [(9.0, True), (8.0, False)])
def test_rows_are_fetched_ahead_where_the_gpu_has_a_copy_engine(
    capability: float, is_fetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (FETCHED in lowered(capability, 2048, jnp.bfloat16, monkeypatch)) == is_fetched


def test_rows_that_are_no_multiple_of_what_the_engine_copies_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FETCHED not in lowered(9.0, 1004, jnp.bfloat16, monkeypatch)


@pytest.mark.parametrize(
    ("width", "dtype", "is_ours"), [(2048, "bfloat16", True), (1000, "bfloat16", False), (2048, "float32", False)]
)
def test_sums_are_made_in_lanes_where_each_part_of_a_row_is_one_warp_s(
    width: int, dtype: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (SUMMED_IN_LANES in lowered(9.0, width, dtype, monkeypatch)) == is_ours


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_others_left_is_kept_in_16_bits_until_it_is_multiplied(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (TWO_PRODUCTS in lowered(9.0, 2048, dtype, monkeypatch)) == (dtype == "bfloat16")


def test_a_jax_that_lowers_otherwise_is_told_of_and_nothing_is_fetched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prefetch, "_LOWERING", "jax._src.pallas.triton.as_it_was")
    prefetch._primitive.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert FETCHED not in lowered(9.0, 2048, jnp.bfloat16, monkeypatch)
        assert "fetch nothing ahead" in caplog.text
    finally:
        prefetch._primitive.cache_clear()
