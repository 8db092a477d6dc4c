"""The fused loss against the plain one: sums, and gradients by hidden states and head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.ops import loss as loss_module
from ponente.ops.loss import cross_entropy_sums

ROWS, WIDTH, VOCABULARY = 24, 8, 17


def plain(hidden, head, targets, weights, z_loss, soft_cap):  # type: ignore[no-untyped-def]
    logits = (hidden @ head).astype(jnp.float32)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    entropy = normalizer - jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return ((entropy + z_loss * normalizer**2) * weights).sum(), (entropy * weights).sum()


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("chunk_logits", [1 << 26, 3 * VOCABULARY])
def test_sums_and_gradients_are_those_of_the_plain_loss(
    z_loss: float, soft_cap: float | None, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", chunk_logits)
    keys = jax.random.split(jax.random.key(0), 4)
    hidden, head = jax.random.normal(keys[0], (ROWS, WIDTH)), jax.random.normal(keys[1], (WIDTH, VOCABULARY))
    targets = jax.random.randint(keys[2], (ROWS,), 0, VOCABULARY)
    weights = jax.random.uniform(keys[3], (ROWS,)).at[::3].set(0)

    def fused(hidden, head):  # type: ignore[no-untyped-def]
        sums = cross_entropy_sums(hidden, head, targets, weights, z_loss=z_loss, soft_cap=soft_cap)
        return 3 * sums.loss, sums

    (_, sums), gradients = jax.jit(jax.value_and_grad(fused, argnums=(0, 1), has_aux=True))(hidden, head)
    total, entropy = plain(hidden, head, targets, weights, z_loss, soft_cap)
    np.testing.assert_allclose(sums.loss, total, rtol=1e-5)
    np.testing.assert_allclose(sums.cross_entropy, entropy, rtol=1e-5)
    np.testing.assert_allclose(sums.weight, weights.sum(), rtol=1e-6)
    expected = jax.grad(lambda *arrays: 3 * plain(*arrays, targets, weights, z_loss, soft_cap)[0], argnums=(0, 1))
    for found, right in zip(gradients, expected(hidden, head), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_without_a_gradient_the_sums_are_the_same() -> None:
    hidden, head = jnp.ones((6, 4)) * 0.3, jnp.linspace(-1, 1, 20).reshape(4, 5)
    arguments = (jnp.arange(6) % 5, jnp.ones(6))
    forward = cross_entropy_sums(hidden, head, *arguments)
    differentiated, _ = jax.value_and_grad(lambda one: cross_entropy_sums(one, head, *arguments).loss)(hidden)
    np.testing.assert_allclose(forward.loss, differentiated, rtol=1e-6)


@pytest.mark.parametrize(("rows", "width", "vocabulary"), [(4096, 16, 65_536), (512, 1024, 262_144)])
def test_the_logits_of_all_rows_never_exist_together(rows: int, width: int, vocabulary: int) -> None:

    def step(hidden, head):  # type: ignore[no-untyped-def]
        targets, weights = jnp.zeros(rows, jnp.int32), jnp.ones(rows)
        return jax.grad(lambda *arrays: cross_entropy_sums(*arrays, targets, weights).loss, argnums=(0, 1))(
            hidden, head
        )

    shapes = jax.ShapeDtypeStruct((rows, width), jnp.float32), jax.ShapeDtypeStruct((width, vocabulary), jnp.float32)
    program = str(jax.make_jaxpr(step)(*shapes))
    assert f"f32[{rows},{vocabulary}]" not in program
    assert f",{vocabulary}]" in program


def test_half_precision_hidden_states_give_half_precision_gradients() -> None:
    hidden, head = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((8, 5), jnp.bfloat16)
    gradients = jax.grad(
        lambda *arrays: cross_entropy_sums(*arrays, jnp.zeros(4, jnp.int32), jnp.ones(4)).loss, argnums=(0, 1)
    )(hidden, head)
    assert [gradient.dtype.name for gradient in gradients] == ["bfloat16", "bfloat16"]
