"""cuDNN's causal attention, plain or packed: documents that do not see each other, given as tables.

JAX has the packed form only under private names, with tables that are gathered row by row, and keeps nothing of a
kernel's by-products through rematerialisation. So this module alone binds JAX's two primitives, and finds out at the
start whether they are there and right. B rows, S tokens, N heads, K key-value heads, H head size, M places a row.
"""

import importlib
import itertools
import logging
import os
import re
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ponente.ops.gpu import capability
from ponente.ops.kept import ATTENTION

_HOPPER = 9.0  # the packed form, and long heads, need it
_MODULE = "jax._src.cudnn.fused_attention_stablehlo"
_DETERMINISTIC = re.compile(r"--xla_gpu_(deterministic|exclude_nondeterministic)_ops(=true|=1|\s|$)")
_SEED = 42  # of the dropout that is not used
_seeds = itertools.count(_SEED)

logger = logging.getLogger(__name__)


class Tables(NamedTuple):
    """The documents of all rows in order, each by its start in the line of all rows and its length.

    They fill the first places, whichever row they are in; behind them are starts of B · S and lengths of 0. Any other
    start there makes the kernel die of an illegal instruction.
    """

    starts_BM: Array
    lengths_BM: Array


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(q_BSNH: Array, k_BSKH: Array, v_BSKH: Array, tables: Tables | None, scale: float) -> Array:
    """Causal attention within rows, or within documents."""
    return _forward(q_BSNH, k_BSKH, v_BSKH, tables, scale)[0]


def _forward(q: Array, k: Array, v: Array, tables: Tables | None, scale: float) -> tuple[Array, Any]:
    kernel = importlib.import_module(_MODULE)
    mixed, statistics = kernel._dot_product_attention_fwd_p.bind(
        q, k, v, *_arguments(q, k, tables), **_options(kernel, tables, scale), is_training=True
    )
    mixed, statistics = checkpoint_name(mixed, ATTENTION), checkpoint_name(statistics, ATTENTION)
    return mixed, (q, k, v, tables, mixed, statistics)


def _backward(scale: float, kept: Any, by_mixed: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, tables, mixed, statistics = kept
    kernel = importlib.import_module(_MODULE)
    by_q, by_k, by_v, *_ = kernel._dot_product_attention_bwd_p.bind(
        *(q, k, v, *_arguments(q, k, tables), statistics, mixed, by_mixed),
        **{**_options(kernel, tables, scale), "seed": _backward_seed()},
    )
    return by_q, by_k, by_v, None


attend.defvjp(_forward, _backward)


def _arguments(q: Array, k: Array, tables: Tables | None) -> tuple[Array, ...]:
    """Bias, lengths of queries and keys, their offsets, two page tables; what is not used is empty."""
    none = jnp.zeros(0, q.dtype)
    if tables is None:
        return (none,) * 7
    rows, length = q.shape[:2]
    end_B = jnp.full(rows, rows * length, jnp.int32)
    starts = jnp.concatenate([tables.starts_BM.reshape(-1), end_B]).reshape(rows, -1)
    lengths = tables.lengths_BM
    offsets = [starts * (array.shape[2] * array.shape[3]) for array in (q, k)]  # in numbers, not in tokens
    return none, lengths, lengths, *offsets, none, none


def _backward_seed() -> int:
    return next(_seeds) if tells_calls_apart() else _SEED


def tells_calls_apart() -> bool:
    """Whether no two calls of the backward kernel may be equal: where XLA is to be deterministic.

    It then fails (`raw_hash_map::at`, in JAX 0.11.2) at a program with two that are, such as two layers. So calls
    differ in the seed, which is not used.
    """
    return _DETERMINISTIC.search(os.environ.get("XLA_FLAGS", "")) is not None


def _options(kernel: Any, tables: Tables | None, scale: float) -> dict[str, Any]:
    return {
        "scale": scale,
        "seed": _SEED,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": kernel.MaskType.CAUSAL if tables is None else kernel.MaskType.PADDING_CAUSAL,
        "layout": kernel.AttentionLayout.BTNH.value,
        "sliding_window_length": None,
    }


def takes_heads(size: int) -> bool:
    """Whether cuDNN's kernels take heads of a size."""
    return size % 8 == 0 and size <= (256 if capability() >= _HOPPER else 128)


@cache
def is_right() -> bool:
    """Whether the kernel can be had here, plain and with tables, and gives the right values on a small example."""
    if capability() < _HOPPER:
        return False
    try:
        with jax.ensure_compile_time_eval():
            error = _error()
    except (ImportError, AttributeError, TypeError, NotImplementedError, RuntimeError, ValueError) as problem:
        logger.warning("attention: cuDNN's packed form cannot be had here (%s: %s)", type(problem).__name__, problem)
        return False
    if not error < 0.05:
        logger.warning("attention: cuDNN's packed form is off by %.3f here, and is not used", error)
        return False
    return True


def _error() -> float:
    """The largest of values and gradients, of three documents in two rows of 128, and of whole rows."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (2, 128, heads, 64), jnp.bfloat16) for key, heads in zip(keys, (4, 2, 2), strict=True)
    )
    starts, lengths = [[0, 50], [128, 256]], [[50, 78], [128, 0]]
    tables = Tables(jnp.array(starts, jnp.int32), jnp.array(lengths, jnp.int32))
    causal = jnp.tril(jnp.ones((128, 128), bool))[None]
    document_BS = jnp.stack([jnp.arange(128) >= 50, jnp.zeros(128, bool)])
    apart = causal & (document_BS[:, :, None] == document_BS[:, None, :])
    cases = ((tables, apart), (None, jnp.broadcast_to(causal, apart.shape)))
    return max(_difference(q, k, v, given, allowed) for given, allowed in cases)


def _difference(q: Array, k: Array, v: Array, tables: Tables | None, allowed_BTS: Array) -> float:
    def plain(q: Array, k: Array, v: Array) -> Array:
        k, v = (jnp.repeat(array, q.shape[2] // k.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("BTNH,BSNH->BNTS", q, k) * 0.125
        weights = jax.nn.softmax(jnp.where(allowed_BTS[:, None], scores, -1e30), axis=-1)
        return jnp.einsum("BNTS,BSNH->BTNH", weights, v)

    found, pull = jax.vjp(lambda *qkv: attend(*qkv, tables, 0.125), q, k, v)
    expected, plain_pull = jax.vjp(plain, *(array.astype(jnp.float32) for array in (q, k, v)))
    pairs = zip((found, *pull(q)), (expected, *plain_pull(q.astype(jnp.float32))), strict=True)
    return max(float(jnp.abs(one.astype(jnp.float32) - other).max() / jnp.abs(other).max()) for one, other in pairs)
