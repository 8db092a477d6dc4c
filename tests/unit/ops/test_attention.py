"""Attention against a plain loop over queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.ops import attention
from ponente.ops.attention import AttentionDropout, Mask, attend


def made(heads: int = 4, groups: int = 2, length: int = 12) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((2, length, heads, 8), (2, length, groups, 8), (2, length, groups, 8))
    q, k, v = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return q, k, v


def plain(q, k, v, segments=None, window=None, soft_cap=None, scale=8**-0.5) -> np.ndarray:  # type: ignore[no-untyped-def]
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    out = np.zeros_like(q)
    for row in range(q.shape[0]):
        for head in range(q.shape[2]):
            group = head // (q.shape[2] // k.shape[2])
            for at in range(q.shape[1]):
                seen = [
                    key
                    for key in range(at + 1)
                    if (window is None or at - key < window)
                    if segments is None or segments[row][key] == segments[row][at]
                ]
                scores = k[row, seen, group] @ q[row, at, head] * scale
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max())
                out[row, at, head] = weights @ v[row, seen, group] / weights.sum()
    return out


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("has_documents", [False, True])
def test_attention_is_what_it_should_be(
    heads: int, groups: int, window: int | None, soft_cap: float | None, has_documents: bool
) -> None:
    q, k, v = made(heads, groups)
    segments = np.array([[0] * 5 + [1] * 7, [0] * 11 + [1]]) if has_documents else None
    mask = Mask(segment_ids_BS=None if segments is None else jnp.asarray(segments))
    found = jax.jit(lambda q, k, v: attend(q, k, v, mask, window=window, soft_cap=soft_cap))(q, k, v)
    np.testing.assert_allclose(found, plain(q, k, v, segments, window, soft_cap), atol=1e-5)


@pytest.mark.parametrize("window", [None, 3, 200])
@pytest.mark.parametrize("length", [256, 384, 260])
def test_rows_of_many_tokens_are_taken_in_blocks(length: int, window: int | None) -> None:
    q, k, v = made(length=length)
    segments = np.stack([np.arange(length) // 150, np.arange(length) // 100])
    mask = Mask(segment_ids_BS=jnp.asarray(segments))
    found = jax.jit(lambda q, k, v: attend(q, k, v, mask, window=window))(q, k, v)
    np.testing.assert_allclose(found, plain(q, k, v, segments, window), atol=1e-5)


def test_gradients_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients() -> tuple[jax.Array, ...]:
        return jax.grad(lambda q, k, v: jnp.sin(attend(q, k, v, Mask(), window=300)).sum(), argnums=(0, 1, 2))(
            *made(length=512)
        )

    in_blocks = gradients()
    monkeypatch.setattr(attention, "_MOST_BLOCKS", 1)
    for found, expected in zip(in_blocks, gradients(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_queries_may_stand_behind_their_keys() -> None:
    q, k, v = made()
    positions = jnp.array([[7, 8], [3, 4]])
    found = attend(jnp.stack([q[0, 7:9], q[1, 3:5]]), k, v, Mask(query_positions_BT=positions))
    whole = plain(q, k, v)
    np.testing.assert_allclose(found, np.stack([whole[0, 7:9], whole[1, 3:5]]), atol=1e-5)


def test_dropout_drops_weights_by_row() -> None:
    q, k, v = made()
    keys = jax.random.split(jax.random.key(1), 2)
    dropped = attend(q, k, v, Mask(), dropout=AttentionDropout(keys, 0.5))
    assert not np.allclose(dropped, attend(q, k, v, Mask()))
    alone = attend(q[1:], k[1:], v[1:], Mask(), dropout=AttentionDropout(keys[1:], 0.5))
    np.testing.assert_allclose(dropped[1:], alone, atol=1e-6)
    assert np.array_equal(attend(q, k, v, Mask(), dropout=AttentionDropout(keys, 0.0)), attend(q, k, v, Mask()))


@pytest.mark.parametrize(
    ("flags", "is_right", "has_documents", "chosen"),
    [
        ("", False, True, "cudnn"),
        ("--xla_gpu_deterministic_ops=true", False, False, "xla"),
        ("--xla_gpu_deterministic_ops", True, True, "xla"),
        ("--xla_gpu_deterministic_ops=1", True, False, "cudnn"),
        ("--xla_gpu_deterministic_ops=false", False, False, "cudnn"),
    ],
)
def test_where_xla_is_deterministic_no_kernel_is_called_in_a_way_that_makes_it_fail(
    flags: str, is_right: bool, has_documents: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(attention, "platform", lambda: "gpu")
    monkeypatch.setattr(attention.cudnn, "takes_heads", lambda size: True)
    monkeypatch.setattr(attention.cudnn, "is_right", lambda: is_right)
    mask = Mask(segment_ids_BS=jnp.zeros((2, 8), jnp.int32) if has_documents else None)
    q = jnp.zeros((2, 8, 4, 64), jnp.bfloat16)
    assert attention._chosen("default", q, mask, None, None, None) == chosen


@pytest.mark.parametrize("backend", ["cudnn", "cudnn_packed"])
def test_a_kernel_that_cannot_be_had_is_an_error(backend: str) -> None:
    with pytest.raises(RefusedError, match=f"found attn_backend: {backend} asked for on cpu"):
        attend(*made(), Mask(), backend=backend)  # type: ignore[arg-type]
