"""Dropout with a key for each row of a batch, so that what is dropped does not depend on how the batch is split."""

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.mesh import UNSPLIT, Tensor


def drop(x: Array, keys_B: Array, rate: float, tensor: Tensor = UNSPLIT) -> Array:
    """x with a share of its values set to 0 and the others made larger by as much.

    Args:
        tensor: over which the second axis of x is split; what is dropped is as if it were not.
    """
    if rate == 0:
        return x
    here, rest = x.shape[1], x.shape[2:]

    def kept_of(key: Array) -> Array:
        every = jax.random.bernoulli(key, 1 - rate, (here * tensor.size, *rest))
        return every if tensor.axis is None else jax.lax.dynamic_slice_in_dim(every, tensor.first(here), here)

    return jnp.where(jax.vmap(kept_of)(keys_B), x / (1 - rate), 0).astype(x.dtype)
