"""Rows of a table, and the gradient of it."""

import jax
import jax.numpy as jnp
import numpy as np

from ponente.ops.embedding import lookup


def test_rows_and_gradients_are_those_of_plain_indexing() -> None:
    table = jax.random.normal(jax.random.key(0), (7, 5))
    ids = jnp.array([[0, 3, 3], [6, 0, 3]])
    by_rows = jax.random.normal(jax.random.key(1), (2, 3, 5))
    rows, pull = jax.vjp(lambda table: lookup(table, ids), table)
    plain, pull_plain = jax.vjp(lambda table: table[ids], table)
    np.testing.assert_array_equal(rows, plain)
    np.testing.assert_allclose(pull(by_rows)[0], pull_plain(by_rows)[0], rtol=1e-6)


def test_a_frequent_row_in_half_precision_gets_all_of_its_gradient() -> None:
    table, ids = jnp.zeros((2, 1), jnp.bfloat16), jnp.zeros(3000, jnp.int32)
    gradient = jax.grad(lambda table: lookup(table, ids).sum(dtype=jnp.float32))(table)
    assert gradient.dtype == jnp.bfloat16
    assert float(gradient[0, 0]) == float(jnp.bfloat16(3000))  # added one by one in bfloat16 it stays at 256
    assert float(gradient[1, 0]) == 0
