"""What cuDNN is asked for, and whether its answer is tried; a plain kernel stands in its place, without a GPU."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from ponente.models.stack import fold_layers
from ponente.ops import cudnn
from ponente.ops.attention import Mask, attend

SIZE = 64


def plain(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, offsets: tuple[jax.Array, ...]) -> jax.Array:
    """Attention in the line of all rows; documents by lengths and by where they begin in numbers, as cuDNN has them."""
    rows, length = q.shape[:2]
    ends = []
    for array, offset in zip((q, k), offsets, strict=True):
        starts = offset.reshape(-1)[: lengths.size] // (array.shape[2] * array.shape[3])
        ends.append((starts, starts + lengths.reshape(-1)))
    at = jnp.arange(rows * length)
    inside = [(at[:, None] >= start) & (at[:, None] < end) for start, end in ends]
    same = jnp.einsum("TM,SM->TS", *(one.astype(jnp.float32) for one in inside)) > 0
    q, k, v = (array.astype(jnp.float32).reshape(1, rows * length, *array.shape[2:]) for array in (q, k, v))
    k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
    scores = jnp.einsum("BTNH,BSNH->BNTS", q, k) * 0.125
    weights = jax.nn.softmax(jnp.where(same & (at[:, None] >= at[None, :]), scores, -1e30), axis=-1)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, v).reshape(rows, length, *q.shape[2:])


def kernel(factor: float) -> Any:
    """JAX's module, with primitives that compute the above; its gradients times a factor."""

    def documents(q: jax.Array, rest: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        bias, lengths, _, q_offsets, k_offsets, *pages = rest
        assert bias.size == sum(page.size for page in pages) == 0
        if lengths.size:
            return lengths, (q_offsets, k_offsets)
        rows, length = q.shape[:2]
        starts = jnp.arange(rows) * length
        return jnp.full((rows, 1), length), tuple(starts * heads * SIZE for heads in (4, 2))

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array, **_: Any) -> list[jax.Array]:
        return [plain(q, k, v, *documents(q, rest)).astype(q.dtype), jnp.zeros(1)]

    def backward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array, **_: Any) -> list[jax.Array]:
        *rest, _statistics, _mixed, by = rest  # type: ignore[assignment]
        gradients = jax.vjp(lambda *qkv: plain(*qkv, *documents(q, tuple(rest))), q, k, v)[1](by.astype(jnp.float32))
        return [factor * gradient for gradient in gradients]

    return SimpleNamespace(
        _dot_product_attention_fwd_p=SimpleNamespace(bind=forward),
        _dot_product_attention_bwd_p=SimpleNamespace(bind=backward),
        MaskType=SimpleNamespace(CAUSAL=1, PADDING_CAUSAL=2),
        AttentionLayout=SimpleNamespace(BTNH=SimpleNamespace(value=0)),
    )


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU, as far as this module can tell; `hopper(kernel)` puts a kernel there."""
    monkeypatch.setattr(cudnn, "capability", lambda: 9.0)
    cudnn.is_right.cache_clear()
    yield lambda given: monkeypatch.setitem(sys.modules, cudnn._MODULE, given)
    cudnn.is_right.cache_clear()


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_kernel_is_used_only_if_its_values_and_gradients_are_right(hopper: Any, is_traced: bool) -> None:
    for factor, expected in ((1.0, True), (1.2, False)):
        cudnn.is_right.cache_clear()
        hopper(kernel(factor))
        found = []
        look = lambda x: found.append(cudnn.is_right()) or x  # noqa: E731
        (jax.jit(look) if is_traced else look)(jnp.zeros(1))
        assert found == [expected]


@pytest.mark.parametrize("checkpointing", [False, True, "dots_and_attention"])
@pytest.mark.parametrize("is_deterministic", [True, False])
def test_no_two_layers_call_the_backward_kernel_equally_where_xla_is_deterministic(
    checkpointing: bool | str, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true" if is_deterministic else "")

    def loss(scales: jax.Array, x: jax.Array) -> jax.Array:
        mixed, _ = fold_layers(
            scales,
            x,
            lambda scale, x, *_: (cudnn.attend(x * scale, x, x, None, 0.125), None),
            is_scanned=False,
            checkpointing=checkpointing,
        )
        return mixed.sum()

    program = jax.make_jaxpr(jax.grad(loss))(jnp.ones(3, jnp.bfloat16), jnp.ones((2, 64, 4, SIZE), jnp.bfloat16))
    seeds = [
        equation.params["seed"]
        for equation in equations(program.jaxpr)
        if "dot_product_attention_bwd" in equation.primitive.name
    ]
    assert len(seeds) == 3
    assert len(set(seeds)) == (3 if is_deterministic else 1)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All of a program, those of programs within it each time that they are called."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_a_kernel_that_is_not_there_is_said_and_not_used(hopper: Any, caplog: pytest.LogCaptureFixture) -> None:
    hopper(SimpleNamespace())
    assert not cudnn.is_right()
    assert "cannot be had here (AttributeError" in caplog.text


def test_tables_hold_the_documents_of_all_rows_apart_with_grouped_heads(hopper: Any) -> None:
    hopper(kernel(1.0))
    keys = jax.random.split(jax.random.key(1), 3)
    q, k, v = (jax.random.normal(key, (2, 24, heads, SIZE)) for key, heads in zip(keys, (4, 2, 2), strict=True))
    tables = cudnn.Tables(jnp.array([[0, 7], [24, 40]]), jnp.array([[7, 17], [16, 8]]))
    ids = jnp.asarray(np.repeat(np.arange(4), [7, 17, 16, 8]).reshape(2, 24))

    def both(function: Any) -> tuple[jax.Array, ...]:
        value, pull = jax.vjp(function, q, k, v)
        return value, *pull(jnp.cos(value))

    found = both(jax.checkpoint(lambda *qkv: cudnn.attend(*qkv, tables, 0.125)))
    for one, other in zip(found, both(lambda *qkv: attend(*qkv, Mask(segment_ids_BS=ids))), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
