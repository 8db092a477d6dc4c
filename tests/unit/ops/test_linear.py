"""Products with weights against einsum: values, gradients, types, and what checkpointing keeps of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.models.stack import fold_layers
from ponente.ops.fp8 import Fp8Weight
from ponente.ops.linear import linear, linears, scaled

CASES = {
    "wider": ((2, 5, 4), (4, 9), 1, "BSD,DF->BSF"),
    "narrower": ((2, 5, 9), (9, 4), 1, "BSF,FD->BSD"),
    "to heads": ((2, 5, 4), (4, 3, 8), 1, "BSD,DNH->BSNH"),
    "from heads": ((2, 5, 3, 8), (3, 8, 4), 2, "BSNH,NHD->BSD"),
    "from heads, wider": ((2, 5, 3, 2), (3, 2, 7, 5), 2, "BSNH,NHXY->BSXY"),
    "no rows": ((4,), (4, 9), 1, "D,DF->F"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_values_and_gradients_are_those_of_einsum(case: tuple, dtype: jnp.dtype) -> None:  # type: ignore[type-arg]
    x_shape, weight_shape, contracted, letters = case
    x = jax.random.normal(jax.random.key(0), x_shape, dtype)
    weight = jax.random.normal(jax.random.key(1), weight_shape, dtype)
    expected, by_einsum = jax.vjp(lambda x, weight: jnp.einsum(letters, x, weight), x, weight)
    found, by_linear = jax.vjp(lambda x, weight: linear(x, weight, contracted), x, weight)
    by_y = jax.random.normal(jax.random.key(2), expected.shape, dtype)
    for ours, theirs in zip((found, *by_linear(by_y)), (expected, *by_einsum(by_y)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(*(np.asarray(one, np.float32) for one in (ours, theirs)), rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize("has_triton", [False, True])
def test_several_products_of_one_input_are_those_of_each(has_triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponente.ops.linear.has_triton", lambda: has_triton)
    shapes = [(2, 5, 4), (4, 3, 2), (4, 9)]
    arrays = [jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes)]
    by = [jax.random.normal(jax.random.key(9), shape) for shape in ((2, 5, 3, 2), (2, 5, 9))]
    expected, by_each = jax.vjp(lambda x, *weights: tuple(linear(x, weight) for weight in weights), *arrays)
    found, by_all = jax.vjp(linears, *arrays)
    for ours, theirs in zip((*found, *by_all(tuple(by))), (*expected, *by_each(tuple(by))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    program = str(jax.make_jaxpr(lambda *arrays: jax.vjp(linears, *arrays)[1](tuple(by)))(*arrays))
    assert program.count("dot_general[") == (2 + 2 if has_triton else 2 + 4)  # two gradients of all, or of each


@pytest.mark.parametrize(("policy", "products"), [("full", 8), ("dots", 6)])
@pytest.mark.parametrize("kind", [lambda weights: weights, Fp8Weight], ids=["exact", "8 bits"])
def test_checkpointing_by_policy_sees_the_products(policy: str, products: int, kind: Any) -> None:
    """Two layers: a product each, two for its gradients, and one more each where it is made again."""
    weights = kind(jnp.ones((2, 4, 4)))

    def loss(weights: Any) -> jax.Array:
        x, _ = fold_layers(
            weights, jnp.ones((3, 4)), lambda weight, x, *_: (jnp.sin(linear(x, weight)), None),
            is_scanned=False, checkpointing=policy,
        )  # fmt: skip
        return x.sum()

    assert str(jax.make_jaxpr(jax.grad(loss))(weights)).count("dot_general[") == products


def test_the_gradient_of_a_weight_taken_into_another_is_added_up_in_float32() -> None:
    random = np.random.default_rng(0)
    weight = jnp.asarray(1 + np.abs(random.normal(size=(4, 16, 64))), jnp.bfloat16)

    def made(norm_D: jax.Array) -> jax.Array:
        return jnp.sum(scaled(weight, norm_D).astype(jnp.float32))

    found = jax.grad(made)(jnp.ones(4, jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(found, jnp.sum(weight.astype(jnp.float32), axis=(1, 2)), rtol=2**-8)
