"""What decoding with a cache of keys and values needs of a model's layers."""

import jax
import jax.numpy as jnp
from jax import Array

from ponente.models.lm import KeyValues, Tokens


def positions_after(past: KeyValues, tokens: Tokens) -> Array:
    """Where new tokens stand in the cache: [B, T]."""
    return past.length_B[:, None] + jnp.arange(tokens.ids_BS.shape[1])[None, :]


def write_behind(kept_BKSH: Array, new_BTKH: Array, at_B: Array) -> Array:
    """The cache of a layer with new keys or values behind those of each row."""
    put = jax.vmap(lambda kept, new, at: jax.lax.dynamic_update_slice_in_dim(kept, new, at, axis=1))
    written: Array = put(kept_BKSH, new_BTKH.swapaxes(1, 2).astype(kept_BKSH.dtype), at_B)  # type: ignore[no-untyped-call]
    return written
