"""Kernels for GPUs, interpreted on the CPU, against plain formulas; tests/gpu runs them for real."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.ops.gated import swiglu_gradients_plain
from ponente.ops.gated_kernel import swiglu_gradients
from ponente.ops.loss_kernel import log_normalizer
from ponente.ops.norm import rms_norm, rms_norm_beside
from ponente.ops.norm_kernel import has_kernel, rms_norm_gradients


@pytest.mark.parametrize("shape", [(4, 2048), (3, 512), (3, 7, 5)])
def test_the_gate_s_gradients_are_those_of_autodiff(shape: tuple[int, ...]) -> None:
    gate, up, by = (3 * jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3))
    expected = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)[1](by)
    for found in (swiglu_gradients(gate, up, by, is_interpreted=True), swiglu_gradients_plain(gate, up, by)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 32, 128), (3, 4, 96), (40, 1000)])
def test_the_norm_s_gradients_are_those_of_autodiff(shape: tuple[int, ...]) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x, by_normed, by_x = (jax.random.normal(key, shape) * 3 for key in keys[:3])
    weight = 1 + jax.random.normal(keys[3], shape[-1:])
    assert has_kernel(x)
    found = rms_norm_gradients(x, weight, by_normed, by_x, 1e-5, is_interpreted=True)
    expected_by_x, by_weight = jax.vjp(lambda x, weight: rms_norm(x, weight, 1e-5), x, weight)[1](by_normed)
    for one, other in zip(found, (expected_by_x + by_x, by_weight), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 32, 128), (3, 7, 64)])  # the second is not for the kernel
def test_a_norm_beside_its_input_has_the_gradients_of_both(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponente.ops.norm.has_triton", lambda: True)
    kernel = partial(rms_norm_gradients, is_interpreted=True)
    monkeypatch.setattr("ponente.ops.norm_kernel.rms_norm_gradients", kernel)
    x, weight = jax.random.normal(jax.random.key(0), shape), jnp.linspace(0.5, 2, shape[-1])

    def loss(norm: Any) -> Any:
        def value(x: jax.Array, weight: jax.Array) -> jax.Array:
            normed, past = norm(x, weight, 1e-5)
            return jnp.sum(jnp.sin(normed) + 2 * jnp.cos(past))

        return jax.value_and_grad(value, argnums=(0, 1))(x, weight)

    found, expected = loss(rms_norm_beside), loss(lambda x, *rest: (rms_norm(x, *rest), x))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 7, 64), (64, 8200)])
def test_odd_and_wide_rows_are_not_for_the_norm_s_kernel(shape: tuple[int, ...]) -> None:
    assert not has_kernel(jnp.zeros(shape))


@pytest.mark.parametrize("vocabulary", [5, 2048, 5003])
@pytest.mark.parametrize("unused", [0, 3])
def test_the_normalizer_of_a_row_is_that_of_logsumexp(vocabulary: int, unused: int) -> None:
    logits = 20 * jax.random.normal(jax.random.key(0), (3, vocabulary)) + jnp.array([[-500.0], [0.0], [1e6]])
    found = log_normalizer(with_unused(logits, unused), vocabulary, is_interpreted=True)
    np.testing.assert_allclose(found, jax.nn.logsumexp(logits, axis=-1), rtol=1e-6)


def with_unused(logits: jax.Array, columns: int) -> jax.Array:
    """With columns behind that stand for no id, and would be seen in any sum."""
    return jnp.pad(logits, ((0, 0), (0, columns)), constant_values=1e7)
