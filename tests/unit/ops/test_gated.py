"""Products of what is gated: those of the two functions after each other, with less that is kept."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from ponente.ops.fp8 import Fp8Weight
from ponente.ops.gated import Activation, gated, linear_of_gated
from ponente.ops.gated_kernel import swiglu_again
from ponente.ops.linear import linear

ROWS, INNER, WIDTH = 6, 1024, 24


def one_after_the_other(gate: Array, up: Array, activation: Activation, weight: Any) -> Array:
    return linear(gated(gate, up, activation), weight)


def given(dtype: Any = jnp.float32) -> tuple[Array, Array, Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (ROWS, INNER), (ROWS, INNER), (INNER, WIDTH)
    gate, up, weight = (jax.random.normal(key, size, dtype) for key, size in zip(keys, sizes, strict=True))
    return gate, up, weight


@pytest.mark.parametrize("has_kernel", [False, True])
@pytest.mark.parametrize("activation", [jax.nn.silu, jax.nn.gelu])
def test_gradients_are_those_of_what_is_gated_and_then_multiplied(
    activation: Activation, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients(made: Any) -> Any:
        def loss(gate: Array, up: Array, weight: Array) -> Array:
            return jnp.sum(jnp.sin(made(gate, up, activation, weight)))

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(*given())

    expected = gradients(one_after_the_other)
    monkeypatch.setattr("ponente.ops.gated.has_triton", lambda: has_kernel)
    monkeypatch.setattr("ponente.ops.gated_kernel.swiglu_again", partial(swiglu_again, is_interpreted=True))
    for one, other in zip(jax.tree.leaves(gradients(linear_of_gated)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_only_gate_up_and_weight_are_kept() -> None:
    def kept(made: Any) -> int:
        pulled = jax.eval_shape(lambda *arrays: jax.vjp(partial(made, activation=jax.nn.silu), *arrays)[1], *given())
        return sum(leaf.size for leaf in jax.tree.leaves(pulled))

    again = kept(lambda gate, up, weight, activation: linear_of_gated(gate, up, activation, weight))
    assert again == 2 * ROWS * INNER + INNER * WIDTH
    assert kept(lambda gate, up, weight, activation: one_after_the_other(gate, up, activation, weight)) > again


def test_the_compiler_does_not_keep_what_is_gated_after_all() -> None:
    """A second pass through the same program would find it, and spare itself the gate."""

    def temporary(made: Any) -> int:
        def loss(x: Array, into: Array, weight: Array) -> Array:
            for _ in range(6):
                x = x + made(x @ into, jnp.tanh(x) @ into, jax.nn.silu, weight)
            return jnp.sum(x)

        shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((2048, WIDTH), (WIDTH, INNER), (INNER, WIDTH))]
        memory = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    of_one_layer = 2048 * INNER * 4
    assert temporary(linear_of_gated) <= temporary(one_after_the_other) - 4 * of_one_layer


def test_products_in_8_bits_are_those_of_linear() -> None:
    gate, up, weight = given(jnp.bfloat16)
    found = linear_of_gated(gate, up, jax.nn.silu, Fp8Weight(weight))
    np.testing.assert_array_equal(found, one_after_the_other(gate, up, jax.nn.silu, Fp8Weight(weight)))
