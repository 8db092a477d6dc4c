"""Cross-entropy of a linear head, fused: logits exist once, a chunk of rows at a time, never as [B·S, V] in float32.

In: hidden states [R, D], the head [D, V], targets and weights [R]. Out: sums, to be divided by the caller, once. The
forward pass also makes the gradients, so that the backward pass only scales them.
R rows (tokens), D width, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gpu import MOST_NUMBERS, has_triton
from ponente.ops.mesh import UNSPLIT, Tensor
from ponente.ops.platform import platform

_CHUNK_LOGITS = 1 << 26  # elements of a chunk, at least: 256 MB in float32
_CHUNK_LOGITS_GPU = 1 << 28  # a gigabyte: fewer chunks read and write the head's gradient less often
_NO_ID = -1e9  # the logit of a column that stands for no id; -inf would make gradients under a soft cap NaN


class _Head(NamedTuple):
    """How products of hidden states and head become logits."""

    soft_cap: float | None
    vocab_size: int
    tensor: Tensor = UNSPLIT  # over which the head's columns are split

    def capped(self, products: Array) -> Array:
        return products if self.soft_cap is None else self.soft_cap * jnp.tanh(products / self.soft_cap)

    def logits(self, products: Array) -> Array:
        """Capped, and with no probability for columns without an id."""
        capped, columns = self.capped(products), products.shape[1]
        if self.vocab_size == columns * self.tensor.size:
            return capped
        return jnp.where(self.ids(columns) < self.vocab_size, capped, _NO_ID)

    def ids(self, columns: int) -> Array:
        """What so many columns, those that are here, stand for."""
        return jnp.arange(columns) + self.tensor.first(columns)


class LossSums(NamedTuple):
    """Sums over tokens, each times its weight."""

    loss: Array  # what is trained on: cross-entropy plus the z-loss
    cross_entropy: Array
    weight: Array


def cross_entropy_sums(
    hidden_RD: Array,
    head_DV: Array,
    targets_R: Array,
    weights_R: Array,
    *,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
    vocab_size: int | None = None,
    tensor: Tensor = UNSPLIT,
) -> LossSums:
    """Weighted sums of -log softmax(hidden · head)[target] (+ z_loss · logsumexp²).

    Args:
        vocab_size: how many columns of the head stand for ids; those behind them have no probability.
        tensor: over which the columns of the head are split; rows are the same on all of its devices.
    """
    head = _Head(soft_cap, head_DV.shape[1] * tensor.size if vocab_size is None else vocab_size, tensor)
    chunks = _chunks(hidden_RD.shape[0], head_DV)
    loss, cross_entropy = _sums(
        tensor.enter(hidden_RD), head_DV, targets_R, weights_R.astype(jnp.float32), z_loss, head, chunks
    )
    return LossSums(loss, cross_entropy, weights_R.sum(dtype=jnp.float32))


def _chunks(rows: int, head_DV: Array) -> int:
    """How many equal chunks there are: of as many rows as the head is wide but no more than a quarter, or few logits.

    Each chunk reads and writes the head's gradient, so that chunks of fewer rows would spend their time on that.
    """
    width, vocabulary = head_DV.shape
    least = _CHUNK_LOGITS_GPU if platform() == "gpu" else _CHUNK_LOGITS
    most = max(min(width, rows // 4), least // vocabulary, 1)
    return next(count for count in range(-(-rows // most), rows + 1) if rows % count == 0)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _sums(
    hidden: Array, head: Array, targets: Array, weights: Array, z_loss: float, kind: _Head, chunks: int
) -> tuple[Array, Array]:
    def chunk(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        hidden_part, target_part, weight_part = part
        products = _products(hidden_part, head)
        log_normalizer = _log_normalizer(products, kind)
        return total + _weighted(products, log_normalizer, target_part, weight_part, z_loss, kind), None

    totals, _ = jax.lax.scan(chunk, jnp.zeros(2, jnp.float32), _split((hidden, targets, weights), chunks))
    return totals[0], totals[1]


def _forward(
    hidden: Array, head: Array, targets: Array, weights: Array, z_loss: float, kind: _Head, chunks: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The sums, and the gradients of the loss by hidden states and head."""

    def chunk(carry: tuple[Array, Array], part: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        total, head_gradient = carry
        hidden_part, target_part, weight_part = part
        products = _products(hidden_part, head)
        rest = (products, _log_normalizer(products, kind), target_part, weight_part, z_loss, kind)
        by_products = _slopes(*rest).astype(hidden_part.dtype)
        total = total + _weighted(*rest)
        head_gradient = head_gradient + _products(hidden_part.T, by_products)
        return (total, head_gradient), _products(by_products, head.T).astype(hidden_part.dtype)

    start = (jnp.zeros(2, jnp.float32), jnp.zeros(head.shape, jnp.float32))
    (totals, head_gradient), hidden_gradient = jax.lax.scan(chunk, start, _split((hidden, targets, weights), chunks))
    return (totals[0], totals[1]), (hidden_gradient.reshape(hidden.shape), head_gradient.astype(head.dtype))


def _backward(
    z_loss: float, kind: _Head, chunks: int, gradients: tuple[Array, Array], by: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    by_hidden, by_head = gradients
    return (by_hidden * by[0]).astype(by_hidden.dtype), (by_head * by[0]).astype(by_head.dtype), None, None


_sums.defvjp(_forward, _backward)


def _products(rows: Array, columns: Array) -> Array:
    return jnp.matmul(rows, columns, preferred_element_type=jnp.float32)


def _weighted(
    products: Array, log_normalizer: Array, targets: Array, weights: Array, z_loss: float, kind: _Head
) -> Array:
    """Loss and cross-entropy, summed over rows."""
    entropies = log_normalizer - kind.capped(_of_targets(products, targets, kind.tensor))
    losses = entropies + z_loss * log_normalizer**2
    return jnp.stack([(losses * weights).sum(), (entropies * weights).sum()])


def _of_targets(products: Array, targets: Array, tensor: Tensor) -> Array:
    if tensor.axis is None:
        return jnp.take_along_axis(products, targets[:, None], axis=-1)[:, 0]
    columns = products.shape[1]
    place = targets - tensor.first(columns)
    found = jnp.take_along_axis(products, jnp.clip(place, 0, columns - 1)[:, None], axis=-1)[:, 0]
    return tensor.sum(jnp.where((place >= 0) & (place < columns), found, 0))


def _slopes(
    products: Array, log_normalizer: Array, targets: Array, weights: Array, z_loss: float, kind: _Head
) -> Array:
    """The gradient of the loss by the products, each once read."""
    logits = kind.logits(products)
    slope = weights * (1 + 2 * z_loss * log_normalizer)
    is_target = kind.ids(logits.shape[1])[None, :] == targets[:, None]
    by_logits = jnp.exp(logits - log_normalizer[:, None]) * slope[:, None] - is_target * weights[:, None]
    if kind.soft_cap is not None:
        by_logits = by_logits * (1 - (logits / kind.soft_cap) ** 2)
    return by_logits


def _log_normalizer(products: Array, kind: _Head) -> Array:
    """Of each row, over all columns, those of other devices too."""
    here = _log_normalizer_here(products, kind)
    if kind.tensor.axis is None:
        return here
    largest = kind.tensor.max(here)
    return jnp.log(kind.tensor.sum(jnp.exp(here - largest))) + largest


def _log_normalizer_here(products: Array, kind: _Head) -> Array:
    """Our kernel takes products of a whole head as they are: logits without the unused columns are never written."""
    is_whole = kind.tensor.axis is None and kind.soft_cap is None
    logits = products if is_whole else kind.logits(products)
    if products.size <= MOST_NUMBERS and has_triton():
        from ponente.ops.loss_kernel import log_normalizer

        return log_normalizer(logits, kind.vocab_size if is_whole else logits.shape[1])
    logits = kind.logits(products)
    maximum = logits.max(axis=-1)
    normalizer: Array = jnp.log(jnp.exp(logits - maximum[:, None]).sum(axis=-1)) + maximum
    return normalizer


def _split(parts: tuple[Array, ...], chunks: int) -> tuple[Array, ...]:
    return tuple(part.reshape(chunks, -1, *part.shape[1:]) for part in parts)


def entropy_sum(hidden_RD: Array, head_DV: Array, weights_R: Array, vocab_size: int, tensor: Tensor = UNSPLIT) -> Array:
    """The weighted sum of the entropies of softmax(hidden · head), in nats."""
    kind = _Head(None, vocab_size, tensor)

    def chunk(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        products = _products(part[0], head_DV)
        log_probabilities = kind.logits(products) - _log_normalizer(products, kind)[:, None]
        entropies = -tensor.sum(jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1))
        return total + (entropies * part[1]).sum(), None

    chunks = _chunks(hidden_RD.shape[0], head_DV)
    total, _ = jax.lax.scan(chunk, jnp.zeros((), jnp.float32), _split((hidden_RD, weights_R), chunks))
    return total
