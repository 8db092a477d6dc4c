"""Dropout with a key for each row of a batch, so that what is dropped does not depend on how the batch is split."""

import jax
import jax.numpy as jnp
from jax import Array


def drop(x: Array, keys_B: Array, rate: float) -> Array:
    """x with a share of its values set to 0 and the others made larger by as much."""
    if rate == 0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys_B)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)
