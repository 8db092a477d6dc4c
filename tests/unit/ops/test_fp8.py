"""Products in 8 bits against exact ones: values, gradients, scales at any size, and what is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.ops.fp8 import Fp8Weight, fp8_product
from ponente.ops.linear import linear

CASES = {
    "wider": ((4, 32, 64), (64, 96), 1, "BSD,DF->BSF"),
    "to heads": ((4, 32, 64), (64, 3, 16), 1, "BSD,DNH->BSNH"),
    "from heads": ((4, 32, 4, 16), (4, 16, 48), 2, "BSNH,NHD->BSD"),
}


def away(found: jax.Array, exact: jax.Array) -> float:
    """How far, as a share of the whole."""
    difference = np.asarray(found, np.float32) - np.asarray(exact, np.float32)
    return float(np.linalg.norm(difference) / np.linalg.norm(np.asarray(exact, np.float32)))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("size", [1.0, 2.0**-60])
def test_values_and_gradients_are_near_those_of_einsum(case: tuple, dtype: jnp.dtype, size: float) -> None:  # type: ignore[type-arg]
    """Values have 3 bits behind the first, so that a product is off by 3.7% or so; gradients have 2."""
    x_shape, weight_shape, contracted, letters = case
    x = jax.random.normal(jax.random.key(0), x_shape, dtype)
    weight = (0.02 * jax.random.normal(jax.random.key(1), weight_shape)).astype(dtype)
    expected, by_einsum = jax.vjp(lambda x, weight: jnp.einsum(letters, x, weight), x, weight)
    found, by_linear = jax.vjp(lambda x, weight: linear(x, Fp8Weight(weight), contracted), x, weight)
    by_y = (size * jax.random.normal(jax.random.key(2), expected.shape)).astype(dtype)
    assert 0.01 < away(found, expected) < 0.05
    for ours, theirs in zip(by_linear(by_y), by_einsum(by_y), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert 0.02 < away(ours, theirs) < 0.08


def test_numbers_that_fit_in_8_bits_give_exact_products() -> None:
    x, weight = (jax.random.randint(jax.random.key(number), (16, 16), -8, 9) for number in range(2))
    for scale in (1.0, 2.0**-70, 2.0**50):
        exact = (x @ weight).astype(jnp.float32) * scale
        np.testing.assert_array_equal(fp8_product(x * jnp.float32(scale), weight * jnp.float32(1.0), 1), exact)


def test_the_largest_number_of_an_array_is_kept_within_the_type() -> None:
    """448 is the largest of the type for values; what is a little more than a power of two of it must not overflow."""
    for largest in (447.0, 448.0, 449.0, 463.0, 512.0, 1e30, 1e38):
        found = fp8_product(jnp.full((1, 16), largest), jnp.full((16, 1), 1 / 16), 1)
        np.testing.assert_allclose(found, largest, rtol=0.07)


def test_zeros_stay_zeros_and_give_zero_gradients() -> None:
    found, back = jax.vjp(lambda *both: fp8_product(*both, 1), jnp.zeros((4, 16)), jnp.zeros((16, 16)))
    assert not found.any()
    assert not any(gradient.any() for gradient in back(jnp.zeros((4, 16))))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_is_not_made_finite(bad: float) -> None:
    good = jnp.ones((16, 16))
    worse = good.at[3, 3].set(bad)
    assert not jnp.isfinite(fp8_product(worse, good, 1)).all()
    assert not jnp.isfinite(fp8_product(good, worse, 1)).all()
    _, back = jax.vjp(lambda *both: fp8_product(*both, 1), good, good)
    assert not any(jnp.isfinite(gradient).all() for gradient in back(worse))
