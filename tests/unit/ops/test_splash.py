"""The kernel of TPUs, run by an interpreter, against plain attention; and where it is chosen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.ops import splash
from ponente.ops.attention import AttentionDropout, Backend, Mask, attend
from ponente.ops.platform import compiling_for, platform

ROWS, LENGTH, SIZE = 2, 256, 32


def made(heads: int = 4, groups: int = 2, length: int = LENGTH) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    counts = (heads, groups, groups)
    return [jax.random.normal(key, (ROWS, length, count, SIZE)) for key, count in zip(keys, counts, strict=True)]


@pytest.mark.parametrize(
    ("groups", "has_documents", "choices"),
    [
        (4, False, {}),
        (2, True, {}),
        (1, True, {"window": 70}),
        (2, False, {"soft_cap": 2.0}),
        (2, True, {"scale": 0.3}),
    ],
)
def test_values_and_gradients_are_those_of_plain_attention(
    groups: int, has_documents: bool, choices: dict[str, Any]
) -> None:
    segments = np.stack([np.arange(LENGTH) // 150, np.arange(LENGTH) // 100])
    mask = Mask(segment_ids_BS=jnp.asarray(segments) if has_documents else None)

    def value(backend: Backend, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if backend == "splash":
            given = {"scale": SIZE**-0.5, "window": None, "soft_cap": None} | choices
            mixed = splash.attend(q, k, v, mask.segment_ids_BS, **given)
        else:
            mixed = attend(q, k, v, mask, backend=backend, **choices)
        return (mixed * jnp.cos(jnp.arange(mixed.size, dtype=jnp.float32).reshape(mixed.shape))).sum()

    both = [
        jax.jit(jax.value_and_grad(lambda *given, name=name: value(name, *given), argnums=(0, 1, 2)))(
            *made(groups=groups)
        )
        for name in ("splash", "xla")
    ]
    for found, expected in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def lowered_for_tpus(mask: Mask, length: int = LENGTH, **choices: Any) -> str:
    with compiling_for("tpu"):
        run = jax.jit(lambda q, k, v: attend(q, k, v, mask, **choices))
        text: str = run.trace(*made(length=length)).lower(lowering_platforms=("tpu",)).as_text()
    return text


def test_it_is_the_kernel_of_tpus_where_it_can_do_it() -> None:
    ids = jnp.zeros((ROWS, LENGTH), jnp.int32)
    for mask in (Mask(), Mask(segment_ids_BS=ids)):
        assert "tpu_custom_call" in lowered_for_tpus(mask)
    dropout = AttentionDropout(jax.random.split(jax.random.key(0), ROWS), 0.1)
    assert "tpu_custom_call" not in lowered_for_tpus(Mask(), dropout=dropout)
    assert "tpu_custom_call" not in lowered_for_tpus(Mask(), length=200)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
    assert "tpu_custom_call" not in lowered_for_tpus(Mask(query_positions_BT=positions))
    assert platform() == jax.default_backend()


def test_where_it_cannot_be_had_it_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"attn_backend: splash asked for on cpu with rows of 256; needed a TPU"):
        attend(*made(), Mask(), backend="splash")
    with pytest.raises(RefusedError, match=r"attn_backend: splash asked for on tpu with rows of 200"):
        lowered_for_tpus(Mask(), length=200, backend="splash")


def test_a_model_that_was_trained_with_it_writes_without_it() -> None:
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
    mask = Mask(query_positions_BT=positions)
    np.testing.assert_allclose(attend(*made(), mask, backend="splash"), attend(*made(), mask, backend="xla"))
