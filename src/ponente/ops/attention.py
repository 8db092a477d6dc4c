"""Attention: which tokens each token sees, and the kernel that computes it.

In: queries [B, T, N, H], keys and values [B, S, K, H] with K dividing N, and a `Mask`. Out: [B, T, N, H].
B batch, T queries, S keys, N heads, K key-value heads, H head size, M places in tables, G = N / K.
"""

import logging
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from ponente.config.errors import RefusedError
from ponente.ops import cudnn, splash
from ponente.ops.dropout import drop
from ponente.ops.kept import ATTENTION
from ponente.ops.mesh import UNSPLIT, Tensor
from ponente.ops.platform import platform

_BLOCK, _MOST_BLOCKS = 128, 8  # queries at once, at least; blocks, at most
_LOWEST = -3.4e38  # instead of -inf, which would make a row without any key NaN

Backend = Literal["default", "xla", "cudnn", "cudnn_packed", "splash"]

logger = logging.getLogger(__name__)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which tokens may be seen: none that comes later, none of another document, none too far back.

    With neither documents nor a window this is plain causal attention. `positions` are given where queries and keys do
    not begin at the same token, as when decoding: key s is then seen by queries at positions from s on.
    """

    segment_ids_BS: Array | None = None
    document_starts_BM: Array | None = None  # the same documents for the kernel that takes tables: see ops/cudnn.py
    document_lengths_BM: Array | None = None
    query_positions_BT: Array | None = None

    def allowed(self, queries: int, keys: int, window: int | None) -> Array:
        """The mask as booleans [B or 1, T, S]."""
        at_T = jnp.arange(queries)[None, :] if self.query_positions_BT is None else self.query_positions_BT
        distance_BTS = at_T[:, :, None] - jnp.arange(keys)[None, None, :]
        allowed = distance_BTS >= 0
        if window is not None:
            allowed &= distance_BTS < window
        if self.segment_ids_BS is not None:
            allowed &= self.segment_ids_BS[:, :, None] == self.segment_ids_BS[:, None, :]
        return allowed


@dataclass(frozen=True)
class AttentionDropout:
    """Dropout of attention's weights: a key for each row, how many are dropped, and which heads are here."""

    keys_B: Array
    rate: float
    tensor: Tensor = UNSPLIT


def attend(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    backend: Backend = "default",
    dropout: AttentionDropout | None = None,
) -> Array:
    """Softmax attention of each query over the keys that its mask allows.

    Args:
        scale: of the scores; by default 1 / sqrt(H).
        window: how many tokens back are seen, itself included; None for all.
        soft_cap: scores are cap · tanh(scores / cap).
        dropout: of the weights after the softmax; plain XLA alone does it.
        backend: "default" takes the fastest kernel that can do it here, and the log says which; others are errors
            where they cannot be had.
    """
    scale = q_BTNH.shape[-1] ** -0.5 if scale is None else scale
    if dropout is not None and dropout.rate == 0:
        dropout = None
    chosen = _chosen(backend, q_BTNH, mask, window, soft_cap, dropout)
    _say(chosen, backend, platform(), mask.segment_ids_BS is not None)
    if chosen == "cudnn_packed":
        assert mask.document_starts_BM is not None
        assert mask.document_lengths_BM is not None
        tables = cudnn.Tables(mask.document_starts_BM, mask.document_lengths_BM)
        return cudnn.attend(q_BTNH, k_BSKH, v_BSKH, tables, scale)
    if chosen == "splash":
        return splash.attend(q_BTNH, k_BSKH, v_BSKH, mask.segment_ids_BS, scale, window, soft_cap)
    if chosen == "cudnn" and window is None and mask.segment_ids_BS is None and cudnn.is_right():
        return cudnn.attend(q_BTNH, k_BSKH, v_BSKH, None, scale)
    if chosen == "cudnn":
        mixed = _attend_cudnn(q_BTNH, k_BSKH, v_BSKH, mask, scale, window)
    else:
        mixed = _attend_xla(q_BTNH, k_BSKH, v_BSKH, mask, scale, window, soft_cap, dropout)
    named: Array = checkpoint_name(mixed, ATTENTION)
    return named


def takes_tables(backend: Backend, dtype: DTypeLike) -> bool:
    """Whether documents are held apart by tables here, in this type, where there are such."""
    is_half = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return backend in ("default", "cudnn_packed") and is_half and cudnn.is_right()


def _chosen(
    backend: Backend,
    q: Array,
    mask: Mask,
    window: int | None,
    soft_cap: float | None,
    dropout: AttentionDropout | None,
) -> Backend:
    is_half = q.dtype in (jnp.bfloat16, jnp.float16)
    is_plain = dropout is None
    can_cudnn = platform() == "gpu" and is_half and is_plain and soft_cap is None and cudnn.takes_heads(q.shape[-1])
    can_splash = platform() == "tpu" and is_plain and splash.takes_length(q.shape[1])
    if mask.query_positions_BT is not None:  # decoding, for which there is no kernel, whatever training was asked for
        return "xla"
    has_tables = mask.document_starts_BM is not None and mask.segment_ids_BS is not None
    can_pack = can_cudnn and has_tables and window is None and cudnn.is_right()
    has_mask = window is not None or mask.segment_ids_BS is not None
    makes_equal_calls = can_cudnn and cudnn.tells_calls_apart() and (has_mask or not cudnn.is_right())  # by JAX itself
    can_plain = can_cudnn and not makes_equal_calls
    if backend == "default":
        return "cudnn_packed" if can_pack else "cudnn" if can_plain else "splash" if can_splash else "xla"
    if backend == "splash" and not can_splash:
        raise RefusedError(
            f"found attn_backend: splash asked for on {platform()} with rows of {q.shape[1]}; needed a TPU, rows of a "
            "multiple of 128, and no dropout. Use attn_backend: default."
        )
    if (backend == "cudnn" and not can_plain) or (backend == "cudnn_packed" and not can_pack):
        raise RefusedError(
            f"found attn_backend: {backend} asked for on {platform()} with {q.dtype.name}, window {window}, "
            f"soft cap {soft_cap}; needed a GPU, 16-bit floats, heads of a multiple of 8, no soft cap and no dropout "
            "(for cudnn_packed also documents, no window, and Hopper; for cudnn in a deterministic run, Hopper, and "
            "neither documents nor window). Use attn_backend: default."
        )
    return backend


@cache
def _say(chosen: Backend, asked: Backend, where: str, has_documents: bool) -> None:
    documents = ", documents apart" if has_documents else ""
    logger.info("attention: %s on %s%s", chosen, where, documents)
    if where == "gpu" and chosen != "cudnn_packed" and has_documents and asked == "default":
        logger.warning("attention: documents are held apart by a dense bias, which is slower than cuDNN's packed form")


def _attend_cudnn(q: Array, k: Array, v: Array, mask: Mask, scale: float, window: int | None) -> Array:
    """cuDNN's flash attention as JAX has it in public; documents become a dense mask."""
    dense = None
    if mask.segment_ids_BS is not None:
        dense = (mask.segment_ids_BS[:, :, None] == mask.segment_ids_BS[:, None, :])[:, None]
    span = None if window is None else (window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, mask=dense, scale=scale, is_causal=True, local_window_size=span, implementation="cudnn"
    )


def _attend_xla(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    dropout: AttentionDropout | None,
) -> Array:
    """Plain attention: scores and softmax in float32, for some queries at a time and the keys that they may see."""
    batch, queries, heads, size = q_BTNH.shape
    keys, groups = k_BSKH.shape[1], k_BSKH.shape[2]
    q_BKGTH = q_BTNH.reshape(batch, queries, groups, heads // groups, size).transpose(0, 2, 3, 1, 4)
    k_BKSH, v_BKSH = k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2)
    allowed_BTS = mask.allowed(queries, keys, window)

    def mixed(number: int, block: slice, seen: slice) -> Array:
        q_BKQH = q_BKGTH[:, :, :, block].reshape(batch, groups, -1, size)  # of all heads of a group together
        k, v = k_BKSH[:, :, seen], v_BKSH[:, :, seen]
        scores = jnp.einsum("BKQH,BKSH->BKQS", q_BKQH, k, preferred_element_type=jnp.float32)
        allowed_BQS = jnp.tile(allowed_BTS[:, block, seen], (1, heads // groups, 1))[:, None]
        if soft_cap is None:
            weights = _masked_softmax(scores, allowed_BQS, scale)
        else:
            weights = _masked_softmax(jnp.tanh(scores * (scale / soft_cap)), allowed_BQS, soft_cap)
        weights = weights.astype(v.dtype)
        if dropout is not None:
            keys_B = jax.vmap(jax.random.fold_in, (0, None))(dropout.keys_B, number)
            weights = drop(weights, keys_B, dropout.rate, dropout.tensor)
        return jnp.einsum("BKQS,BKSH->BKQH", weights, v).reshape(batch, groups, heads // groups, -1, size)

    parts = [mixed(number, *block) for number, block in enumerate(_blocks(queries, keys, mask, window))]
    return jnp.concatenate(parts, axis=3).transpose(0, 3, 1, 2, 4).reshape(batch, queries, heads, size)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _masked_softmax(scores: Array, allowed: Array, scale: float) -> Array:
    """The softmax of scale · scores over the last axis, where allowed. Only its value is kept for the gradient."""
    return jax.nn.softmax(jnp.where(allowed, scores * scale, _LOWEST), axis=-1)


def _softmax_forward(scores: Array, allowed: Array, scale: float) -> tuple[Array, Array]:
    weights = _masked_softmax(scores, allowed, scale)
    return weights, weights


def _softmax_backward(scale: float, weights: Array, by_weights: Array) -> tuple[Array, None]:
    mean = (weights * by_weights).sum(axis=-1, keepdims=True)
    return weights * (by_weights - mean) * scale, None


_masked_softmax.defvjp(_softmax_forward, _softmax_backward)


def _blocks(queries: int, keys: int, mask: Mask, window: int | None) -> list[tuple[slice, slice]]:
    """Queries in equal blocks, each with the keys from the first to the last that one of them may see."""
    if mask.query_positions_BT is not None:
        return [(slice(0, queries), slice(0, keys))]
    fitting = (count for count in range(_MOST_BLOCKS, 1, -1) if queries % count == 0 and queries // count >= _BLOCK)
    size = queries // next(fitting, 1)
    firsts = range(0, queries, size)
    backs = [0 if window is None else max(0, first - window + 1) for first in firsts]
    return [(slice(first, first + size), slice(back, first + size)) for first, back in zip(firsts, backs, strict=True)]
