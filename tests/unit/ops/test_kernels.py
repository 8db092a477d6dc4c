"""Kernels for GPUs, interpreted on the CPU, against plain formulas; tests/gpu runs them for real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.ops.gated import swiglu_gradients_plain
from ponente.ops.gated_kernel import swiglu_gradients
from ponente.ops.loss_kernel import log_normalizer


@pytest.mark.parametrize("shape", [(4, 2048), (3, 512), (3, 7, 5)])
def test_the_gate_s_gradients_are_those_of_autodiff(shape: tuple[int, ...]) -> None:
    gate, up, by = (3 * jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3))
    expected = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)[1](by)
    for found in (swiglu_gradients(gate, up, by, is_interpreted=True), swiglu_gradients_plain(gate, up, by)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vocabulary", [5, 2048, 5003])
@pytest.mark.parametrize("unused", [0, 3])
def test_the_normalizer_of_a_row_is_that_of_logsumexp(vocabulary: int, unused: int) -> None:
    logits = 20 * jax.random.normal(jax.random.key(0), (3, vocabulary)) + jnp.array([[-500.0], [0.0], [1e6]])
    found = log_normalizer(with_unused(logits, unused), vocabulary, is_interpreted=True)
    np.testing.assert_allclose(found, jax.nn.logsumexp(logits, axis=-1), rtol=1e-6)


def with_unused(logits: jax.Array, columns: int) -> jax.Array:
    """With columns behind that stand for no id, and would be seen in any sum."""
    return jnp.pad(logits, ((0, 0), (0, columns)), constant_values=1e7)
