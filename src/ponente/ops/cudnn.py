"""cuDNN's packed attention: rows of documents that do not see each other, given as tables of starts and lengths.

JAX has it only under a private name, so this module alone knows it, and finds out at the start whether it is there and
right.
"""

import importlib
import logging
from functools import cache

import jax
import jax.numpy as jnp
from jax import Array

logger = logging.getLogger(__name__)

_MODULE = "jax._src.cudnn.fused_attention_stablehlo"


@cache
def has_packed_form() -> bool:
    """Whether the kernel can be had here and gives the right values on a small example."""
    if jax.default_backend() != "gpu":
        return False
    try:
        with jax.ensure_compile_time_eval():
            return _is_right()
    except (ImportError, AttributeError, TypeError, NotImplementedError, RuntimeError, ValueError) as error:
        logger.warning("attention: cuDNN's packed form cannot be had here (%s: %s)", type(error).__name__, error)
        return False


def attend_packed(
    q_BSNH: Array, k_BSKH: Array, v_BSKH: Array, starts_BM: Array, lengths_BM: Array, scale: float
) -> Array:
    """Causal attention within the documents of each row; tables end in -1 and 0."""
    kernel = importlib.import_module(_MODULE)
    starts_BM = jnp.where(starts_BM < 0, q_BSNH.shape[1], starts_BM)  # -1 before the end is an illegal instruction
    end_B1 = jnp.full((starts_BM.shape[0], 1), -1, jnp.int32)
    offsets = jnp.concatenate([starts_BM, end_B1], axis=1)
    mixed: Array = kernel.dot_product_attention(
        *(q_BSNH, k_BSKH, v_BSKH, None, None, lengths_BM, lengths_BM, offsets, offsets),
        scale=scale,
        mask_type=kernel.MaskType.PADDING_CAUSAL,
    )
    return mixed


def _is_right() -> bool:
    """Two documents in a row of 128, against plain softmax."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, 128, 2, 64), jnp.bfloat16) for key in keys)
    starts, lengths = jnp.array([[0, 50, -1]], jnp.int32), jnp.array([[50, 78, 0]], jnp.int32)
    found = attend_packed(q, k, v, starts, lengths, 0.125).astype(jnp.float32)
    document = (jnp.arange(128) >= 50).astype(jnp.int32)
    allowed = jnp.tril(jnp.ones((128, 128), bool)) & (document[:, None] == document[None, :])
    scores = jnp.einsum("BTNH,BSNH->BNTS", q, k, preferred_element_type=jnp.float32) * 0.125
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e30), axis=-1)
    expected = jnp.einsum("BNTS,BSNH->BTNH", weights, v.astype(jnp.float32))
    is_near = bool(jnp.abs(found - expected).max() < 0.05)
    if not is_near:
        logger.warning("attention: cuDNN's packed form gives other values here, and is not used")
    return is_near
