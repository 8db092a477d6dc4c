"""The logarithm of a softmax's normalizer by a Triton kernel: one pass over the logits, at the speed of memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

_BLOCK, _WARPS = 2048, 4  # numbers of a row at once
_LOWEST = -3.4e38


def log_normalizer(logits_RV: Array, vocab_size: int, *, is_interpreted: bool = False) -> Array:
    """log Σ exp(logits) of the first `vocab_size` columns of each row; logits are float32."""
    rows = logits_RV.shape[0]

    def kernel(logits: Any, normalizers: Any) -> None:
        """One row: the largest so far, and sums relative to it, one for each place of a block."""
        row = pl.program_id(0)

        def block(number: Any, sums: Any) -> Any:
            largest, total = sums
            is_there = number * _BLOCK + jnp.arange(_BLOCK) < vocab_size
            found = triton.load(logits.at[row, pl.ds(number * _BLOCK, _BLOCK)], mask=is_there, other=_LOWEST)
            new = jnp.maximum(largest, found.max())
            return new, total * jnp.exp(largest - new) + jnp.exp(found - new)

        nothing = jnp.float32(_LOWEST), jnp.zeros(_BLOCK, jnp.float32)
        largest, total = jax.lax.fori_loop(0, pl.cdiv(vocab_size, _BLOCK), block, nothing)
        triton.store(normalizers.at[row], jnp.log(total.sum()) + largest)

    result: Array = pl.pallas_call(
        kernel,
        grid=(rows,),
        in_specs=[pl.BlockSpec()],
        out_specs=pl.BlockSpec(),
        out_shape=jax.ShapeDtypeStruct((rows,), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=is_interpreted,
        name="log_normalizer",
    )(logits_RV)
    return result
