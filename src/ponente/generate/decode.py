"""New tokens for prompts, with a cache of keys and values of a fixed size, on one device.

In: a model and prompts as ids, of any lengths. Out: ids of each, whole or as they come. Prompts are padded on the right
to a power of two and read in one call; then the length of each row in the cache is set back to its own, so that what
stands behind it is seen by no token and overwritten by the next ones. A loop on the device adds a token to every row at
a time. B batch, T prompt, N new tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ponente.config.errors import RefusedError
from ponente.generate.layers import ReadyModel, apart, ready, together
from ponente.generate.sampling import Choice, SamplingConfig, choice_of, keys_of, only_known
from ponente.models.lm import KeyValues, LanguageModel, Tokens, logits
from ponente.ops.attention import Mask

FinishReason = Literal["stop", "length"]

_SHORTEST_PROMPT = 16  # shorter ones are padded to it
_NO_ID = -1
_MOST_BY_DEFAULT = 256  # new tokens
_ROOM = 64  # room for new tokens comes in multiples of it: few sizes, few compilations


@dataclass(frozen=True, kw_only=True)
class Generation:
    """New ids of each prompt, without the one that stopped it, and why they end."""

    ids: list[list[int]]
    finish_reasons: list[FinishReason]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which token follows, and which ends a row."""

    choice: Choice
    seed: Array
    rows_B: Array
    stop_ids: Array
    vocab_size: Array

    @classmethod
    def of(cls, sampling: SamplingConfig, rows: range, vocab_size: int) -> "Rule":
        stops = [*sampling.stop_ids, *[_NO_ID] * (8 - len(sampling.stop_ids) % 8)]  # few sizes, few compilations
        return cls(
            choice=choice_of(sampling),
            seed=jnp.uint32(sampling.seed),
            rows_B=jnp.asarray(rows, jnp.uint32),
            stop_ids=jnp.asarray(stops, jnp.int32),
            vocab_size=jnp.int32(vocab_size),
        )

    def next_B(self, model: LanguageModel, hidden_BD: Array, positions_B: Array) -> Array:
        """The tokens that will stand at these positions."""
        logits_BV = only_known(logits(model, hidden_BD), self.vocab_size)
        return self.choice(logits_BV, keys_of(self.seed, self.rows_B, positions_B))

    def ends_B(self, ids_B: Array) -> Array:
        return jnp.any(ids_B[:, None] == self.stop_ids, axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Texts:
    """What was generated so far: `count` tokens a row, of which the first `kept_B` are the row's text."""

    new_BN: Array
    count: Array
    kept_B: Array
    is_done_B: Array

    @classmethod
    def none(cls, batch: int, room: int) -> "Texts":
        return cls(
            new_BN=jnp.zeros((batch, room), jnp.int32),
            count=jnp.int32(0),
            kept_B=jnp.zeros(batch, jnp.int32),
            is_done_B=jnp.zeros(batch, bool),
        )

    def last_B1(self) -> Array:
        return jax.lax.dynamic_slice_in_dim(self.new_BN, self.count - 1, 1, axis=1)

    def plus(self, ids_B: Array, ends_B: Array) -> "Texts":
        is_done_B = self.is_done_B | ends_B
        return Texts(
            new_BN=jax.lax.dynamic_update_slice_in_dim(self.new_BN, ids_B[:, None], self.count, axis=1),
            count=self.count + 1,
            kept_B=self.kept_B + ~is_done_B,
            is_done_B=is_done_B,
        )


def generate(
    model: LanguageModel | ReadyModel,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    *,
    vocab_size: int | None = None,
    dtype: DTypeLike | None = None,
    cache_dtype: DTypeLike | None = None,
    first_row: int = 0,
) -> Generation:
    """New ids for every prompt, all in one batch.

    Args:
        vocab_size: how many ids the tokenizer has; larger ones, of a padded vocabulary, are never chosen.
        dtype: of the computation; by default that of the weights.
        cache_dtype: of the cache; by default that of the computation.
        first_row: the number of the first prompt, where a longer list is generated part by part: draws then do not
            depend on how it was parted.

    Example: `generate(model, [[1], [1, 403, 407]], SamplingConfig(max_new_tokens=200, stop_ids=(2,))).ids`
    """
    if len(prompts) == 0:
        return Generation(ids=[], finish_reasons=[])
    run = _Run.of(model, prompts, sampling, vocab_size, dtype, cache_dtype, first_row)
    past, texts = run.begin()
    _, texts = decode(run.model, past, texts, run.rule, np.int32(run.most))
    here = jax.device_get(texts)
    return Generation(
        ids=[row[:kept].tolist() for row, kept in zip(here.new_BN, here.kept_B, strict=True)],
        finish_reasons=["stop" if is_done else "length" for is_done in here.is_done_B],
    )


def stream(
    model: LanguageModel | ReadyModel,
    prompt: Sequence[int],
    sampling: SamplingConfig,
    *,
    vocab_size: int | None = None,
    dtype: DTypeLike | None = None,
    cache_dtype: DTypeLike | None = None,
) -> Iterator[int]:
    """The new ids of one prompt as they come: those of `generate`, whose arguments it takes."""
    run = _Run.of(model, [prompt], sampling, vocab_size, dtype, cache_dtype, first_row=0)
    past, texts = run.begin()
    for count in range(1, run.most + 1):
        past, texts = decode(run.model, past, texts, run.rule, np.int32(count))
        here = jax.device_get(texts)
        if here.is_done_B[0]:
            return
        yield int(here.new_BN[0, count - 1])


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Prompts and a model, checked and ready for the device."""

    model: ReadyModel
    rule: Rule
    ids_BT: np.ndarray[Any, np.dtype[np.int32]]
    lengths_B: np.ndarray[Any, np.dtype[np.int32]]
    cache_length: int
    cache_dtype: np.dtype[Any]
    most: int  # new tokens
    room: int

    @classmethod
    def of(
        cls,
        model: LanguageModel | ReadyModel,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        vocab_size: int | None,
        dtype: DTypeLike | None,
        cache_dtype: DTypeLike | None,
        first_row: int,
    ) -> "_Run":
        decoder = ready(model, dtype)
        head, limit = jax.eval_shape(decoder.arrays.head_DV), decoder.arrays.config.max_seq_len
        lengths_B = np.array([len(prompt) for prompt in prompts], np.int32)
        most = sampling.max_new_tokens or max(1, min(_MOST_BY_DEFAULT, limit - int(lengths_B.max())))
        _check(prompts, most, limit, head.shape[1])
        padded = _padded_length(int(lengths_B.max()), limit)
        ids_BT = np.zeros((len(prompts), padded), np.int32)
        for row, prompt in enumerate(prompts):
            ids_BT[row, : len(prompt)] = prompt
        room = -(-most // _ROOM) * _ROOM
        return cls(
            model=decoder,
            rule=Rule.of(sampling, range(first_row, first_row + len(prompts)), vocab_size or head.shape[1]),
            ids_BT=ids_BT,
            lengths_B=lengths_B,
            cache_length=min(padded + room, limit),
            cache_dtype=np.dtype(cache_dtype or head.dtype),
            most=most,
            room=room,
        )

    def begin(self) -> tuple[KeyValues, Texts]:
        began: tuple[KeyValues, Texts] = prefill(
            self.model,
            self.ids_BT,
            self.lengths_B,
            self.rule,
            cache_length=self.cache_length,
            cache_dtype=self.cache_dtype,
            room=self.room,
        )
        return began


def _padded_length(longest: int, limit: int) -> int:
    """The next power of two: prompts of many lengths, few compilations."""
    return min(max(1 << (longest - 1).bit_length(), _SHORTEST_PROMPT), limit)


def _check(prompts: Sequence[Sequence[int]], most: int, max_seq_len: int, vocabulary: int) -> None:
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise RefusedError(
                f"found prompt {row} without a token; needed at least one to begin with. Begin it with the tokenizer's "
                "begin token."
            )
        if len(prompt) + most > max_seq_len:
            raise RefusedError(
                f"found prompt {row} of {len(prompt)} tokens and max_new_tokens: {most}; needed at most {max_seq_len} "
                "together, the model's max_seq_len. Shorten the prompt, or ask for fewer tokens."
            )
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            wrong = next(one for one in prompt if not 0 <= one < vocabulary)
            raise RefusedError(
                f"found id {wrong} in prompt {row}; needed ids from 0 to {vocabulary - 1}, the model's vocabulary. "
                "Use the tokenizer that belongs to the model."
            )


@partial(jax.jit, static_argnames=("cache_length", "cache_dtype", "room"))
def prefill(
    decoder: ReadyModel,
    ids_BT: Array,
    lengths_B: Array,
    rule: Rule,
    *,
    cache_length: int,
    cache_dtype: np.dtype[Any],
    room: int,
) -> tuple[KeyValues, Texts]:
    """The cache with prompts in it, its layers apart, and the first new token of each."""
    model, batch = together(decoder.arrays), ids_BT.shape[0]
    empty = KeyValues.empty(model.config, batch, cache_length, cache_dtype)
    hidden_BTD, past = model.extend(Tokens.plain(ids_BT), empty)
    last_BD = jnp.take_along_axis(hidden_BTD, lengths_B[:, None, None] - 1, axis=1)[:, 0]
    first_B = rule.next_B(model, last_BD, lengths_B)
    texts = Texts.none(batch, room).plus(first_B, rule.ends_B(first_B))
    return apart(replace(past, length_B=lengths_B)), texts


@partial(jax.jit, donate_argnames="past")
def decode(decoder: ReadyModel, past: KeyValues, texts: Texts, rule: Rule, limit: Array) -> tuple[KeyValues, Texts]:
    """The texts with `limit` tokens a row, or fewer where all rows have ended."""

    def is_unfinished(state: tuple[KeyValues, Texts]) -> Array:
        _, texts = state
        return (texts.count < limit) & ~jnp.all(texts.is_done_B)

    def step(state: tuple[KeyValues, Texts]) -> tuple[KeyValues, Texts]:
        past, texts = state
        model = together(decoder.arrays)
        tokens = Tokens(ids_BS=texts.last_B1(), positions_BS=past.length_B[:, None], mask=Mask())
        hidden_B1D, past = model.extend(tokens, together(past))
        next_B = rule.next_B(model, hidden_B1D[:, 0], past.length_B)
        return apart(past), texts.plus(next_B, rule.ends_B(next_B))

    return jax.lax.while_loop(is_unfinished, step, (past, texts))
