"""Attention by JAX's splash kernel, for TPUs: scores never leave a core, and blocks that no query sees are left out.

In: queries [B, T, N, H], keys and values [B, T, K, H]. Out: [B, T, N, H]. Elsewhere it is run by an interpreter.
"""

from typing import Any

import jax
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from ponente.ops.kept import ATTENTION
from ponente.ops.platform import platform

_SMALLEST = 128  # block, which must divide the rows' length
_BLOCKS = (512, 256, _SMALLEST)


def takes_length(length: int) -> bool:
    """Whether rows of this length can be cut into its blocks."""
    return length % _SMALLEST == 0


def attend(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    segment_ids_BS: Array | None,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> Array:
    """Causal attention; with ids, within documents."""
    length, heads = q_BTNH.shape[1:3]
    run = _kernel(length, heads, window, soft_cap, is_interpreted=platform() != "tpu")
    segments = None if segment_ids_BS is None else kernel.SegmentIds(q=segment_ids_BS, kv=segment_ids_BS)
    of_rows = jax.vmap(run, in_axes=(0, 0, 0, None if segments is None else 0))
    mixed_BNTH: Array = of_rows((q_BTNH * scale).swapaxes(1, 2), k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2), segments)
    return mixed_BNTH.swapaxes(1, 2).astype(q_BTNH.dtype)


def _kernel(length: int, heads: int, window: int | None, soft_cap: float | None, *, is_interpreted: bool) -> Any:
    seen: Any = masks.CausalMask((length, length))
    if window is not None:
        seen = masks.LocalMask((length, length), (window - 1, 0), 0)
    size = next(size for size in _BLOCKS if length % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": size for name in names}
    return kernel.make_splash_mha_single_device(
        masks.MultiHeadMask([seen] * heads),
        block_sizes=kernel.BlockSizes(**sizes),
        attn_logits_soft_cap=soft_cap,
        residual_checkpoint_name=ATTENTION,
        interpret=is_interpreted,
    )
