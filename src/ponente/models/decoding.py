"""What all families share: a model with or without a cache of keys and values, and attention of its layers with it."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ponente.models.lm import KeyValues, Tokens
from ponente.ops.attention import AttentionDropout, Backend, Mask, attend
from ponente.ops.mesh import whole


class Decoder(eqx.Module):
    """A language model, whole where a family says how tokens run through it."""

    embed_VD: eqx.AbstractVar[Array]
    w_head_DV: eqx.AbstractVar[Array | None]  # None: tied to the embeddings

    def head_DV(self) -> Array:
        return whole(self.embed_VD).T if self.w_head_DV is None else whole(self.w_head_DV)

    def hidden(self, tokens: Tokens) -> Array:
        hidden, _ = self._run(tokens, None)
        return hidden

    def extend(self, tokens: Tokens, past: KeyValues) -> tuple[Array, KeyValues]:
        hidden, (keys, values) = self._run(tokens, past)
        return hidden, KeyValues(keys=keys, values=values, length_B=past.length_B + tokens.ids_BS.shape[1])

    @abstractmethod
    def _run(self, tokens: Tokens, past: KeyValues | None) -> tuple[Array, Any]:
        """Hidden states, and what each layer keeps: the new keys and values of all layers where there is a cache."""


def attend_after(
    past: KeyValues | None,
    kept: Any,
    qkv: tuple[Array, Array, Array],
    tokens: Tokens,
    *,
    backend: Backend,
    is_upcast: bool = False,
    dropout: AttentionDropout | None = None,
) -> tuple[Array, Any]:
    """What attention mixes of the values, and the layer's cache with the new keys and values in it.

    Args:
        past: the cache of all layers; None where there is none.
        kept: the keys and values of this layer's part of it.
        is_upcast: whether scores are computed of queries and keys in float32.
    """
    (q, k, v), mask = qkv, tokens.mask
    dtype = q.dtype
    if past is not None:
        k, v = write_behind(kept[0], k, past.length_B), write_behind(kept[1], v, past.length_B)
        mask, kept = Mask(query_positions_BT=positions_after(past, tokens)), (k, v)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    if is_upcast:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    return attend(q, k, v.astype(q.dtype), mask, backend=backend, dropout=dropout).astype(dtype), kept


def positions_after(past: KeyValues, tokens: Tokens) -> Array:
    """Where new tokens stand in the cache: [B, T]."""
    return past.length_B[:, None] + jnp.arange(tokens.ids_BS.shape[1])[None, :]


def write_behind(kept_BKSH: Array, new_BTKH: Array, at_B: Array) -> Array:
    """The cache of a layer with new keys or values behind those of each row."""
    put = jax.vmap(lambda kept, new, at: jax.lax.dynamic_update_slice_in_dim(kept, new, at, axis=1))
    written: Array = put(kept_BKSH, new_BTKH.swapaxes(1, 2).astype(kept_BKSH.dtype), at_B)  # type: ignore[no-untyped-call]
    return written
