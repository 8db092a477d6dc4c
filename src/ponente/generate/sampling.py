"""How the next token is chosen.

In: logits [B, V] and a key for each row. Out: ids [B]. Keys follow from the seed, the row's number and the position, so
what a row draws depends neither on its batch mates nor on the size of the batch. B batch, V vocabulary, R the tokens
that are left, which are all or the likeliest.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from ponente.config.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Which tokens may be drawn and when a text ends; with a temperature of 0 the likeliest is taken."""

    max_new_tokens: int | None = None  # None: 256, or as many as the model has room for behind the prompts
    temperature: float = 0.0
    top_k: int | None = None  # only the k likeliest
    top_p: float | None = None  # only the likeliest that reach this probability together
    seed: int = 0
    stop_ids: tuple[int, ...] = ()  # each ends a text and is no part of it

    def __post_init__(self) -> None:
        most = self.max_new_tokens
        _check("max_new_tokens", most, most is None or most >= 1, "1 or more")
        _check("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 (the likeliest) or more")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "1 or more, or none")
        _check("top_p", self.top_p, self.top_p is None or 0 < self.top_p <= 1, "more than 0 and at most 1, or none")
        _check("seed", self.seed, 0 <= self.seed < 2**32, "0 to 4294967295")


def _check(name: str, value: object, is_fine: bool, needed: str) -> None:
    if not is_fine:
        raise RefusedError(f"found {name}: {value}; needed {needed}. Change {name}.")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Likeliest:
    """Takes the likeliest token."""

    def __call__(self, logits_BV: Array, keys_B: Array) -> Array:
        del keys_B
        return first_of_largest(logits_BV)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Draw:
    """Draws a token by its probability: temperature first, then top-k, then top-p, in the order of transformers.

    Temperature and top-p are arrays, so that other values of them are not compiled again.
    """

    temperature: Array
    top_p: Array | None = None
    top_k: int | None = field(default=None, metadata={"static": True})

    def __call__(self, logits_BV: Array, keys_B: Array) -> Array:
        largest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
        scaled_BV = (logits_BV - largest_B1) / self.temperature  # none overflows, however small the temperature
        if self.top_k is None or self.top_k >= scaled_BV.shape[-1]:
            return _drawn(self._likely(scaled_BV), keys_B)
        scaled_BR, ids_BR = jax.lax.top_k(scaled_BV, self.top_k)
        ranks_B = _drawn(self._likely(scaled_BR), keys_B)
        return jnp.take_along_axis(ids_BR, ranks_B[:, None], axis=-1)[:, 0]

    def _likely(self, logits_BR: Array) -> Array:
        return logits_BR if self.top_p is None else within_top_p(logits_BR, self.top_p)


def first_of_largest(logits_BV: Array) -> Array:
    """The id of the largest, of equals the lowest; on a CPU ten times as fast as argmax."""
    largest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    last = logits_BV.shape[-1] - 1
    return jnp.min(jnp.where(logits_BV == largest_B1, jnp.arange(last + 1, dtype=jnp.int32), last), axis=-1)


def within_top_p(logits_BR: Array, top_p: Array) -> Array:
    """Logits with those at -inf that are less likely than a set which has the probability `top_p` already.

    The least probability that stays is found bit by bit, which is many times as fast as sorting a vocabulary.
    """
    share_BR = jax.nn.softmax(logits_BR, axis=-1)
    bits_BR = jax.lax.bitcast_convert_type(share_BR, jnp.int32)  # ordered as the numbers are, for none is negative

    def with_bit(number: Array, least_B: Array) -> Array:
        higher_B = least_B | (1 << (29 - number))  # from the highest bit that a probability has
        sum_B = jnp.sum(jnp.where(bits_BR >= higher_B[:, None], share_BR, 0), axis=-1)
        return jnp.where(sum_B >= top_p, higher_B, least_B)

    least_B = jax.lax.fori_loop(0, 30, with_bit, jnp.zeros(logits_BR.shape[0], jnp.int32))
    return jnp.where(bits_BR >= least_B[:, None], logits_BR, -jnp.inf)


def _drawn(logits_BR: Array, keys_B: Array) -> Array:
    noise_BR = jax.vmap(lambda key: jax.random.gumbel(key, logits_BR.shape[1:]))(keys_B)
    return first_of_largest(logits_BR + noise_BR)


Choice = Likeliest | Draw


def choice_of(sampling: SamplingConfig) -> Choice:
    """The choice that a config asks for."""
    if sampling.temperature == 0:
        return Likeliest()
    top_p = None if sampling.top_p in (None, 1.0) else jnp.float32(sampling.top_p)
    return Draw(temperature=jnp.float32(sampling.temperature), top_p=top_p, top_k=sampling.top_k)


def keys_of(seed: Array, rows_B: Array, positions_B: Array) -> Array:
    """A key for the token of each row at a position."""
    root = jax.random.key(seed)

    def key(row: Array, position: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(root, row), position)

    return jax.vmap(key)(rows_B, positions_B)


def only_known(logits_BV: Array, vocab_size: Array) -> Array:
    """Logits with those of ids that no tokenizer gives at -inf: a vocabulary may be padded."""
    return jnp.where(jnp.arange(logits_BV.shape[-1]) < vocab_size, logits_BV, -jnp.inf)
