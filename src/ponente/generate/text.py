"""Text for text: prompts are tokenized, continued and turned back, whole or as the text grows.

In: a model, its tokenizer and prompts. Out: what follows each prompt, without special tokens. Besides the stop ids of
the config, the end token stops a text.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jax.typing import DTypeLike

from ponente.config.errors import RefusedError
from ponente.generate.decode import generate, stream
from ponente.generate.sampling import SamplingConfig
from ponente.models.lm import LanguageModel
from ponente.tokens.tokenizer import Tokenizer

_UNFINISHED = "\ufffd"  # what decoding gives for a part of a character


def complete(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    *,
    dtype: DTypeLike | None = None,
    first_row: int = 0,
) -> list[str]:
    """What follows each prompt, all in one batch; arguments as of `decode.generate`."""
    ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    made = generate(
        model, ids, _stopping(sampling, tokenizer), vocab_size=tokenizer.vocab_size, dtype=dtype, first_row=first_row
    )
    return [_behind(tokenizer, prompt, new) for prompt, new in zip(ids, made.ids, strict=True)]


def stream_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: SamplingConfig,
    *,
    dtype: DTypeLike | None = None,
) -> Iterator[str]:
    """What follows a prompt, in pieces of whole characters as they come; together they are what `complete` gives."""
    ids = encode_prompt(tokenizer, prompt)
    text = GrowingText(tokenizer, ids)
    for new in stream(model, ids, _stopping(sampling, tokenizer), vocab_size=tokenizer.vocab_size, dtype=dtype):
        if piece := text.add(new):
            yield piece
    if rest := text.rest():
        yield rest


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's ids, with the special tokens that the tokenizer puts before a text; of no text, one to begin with."""
    ids: list[int] = tokenizer.encode_flat([prompt])[0].tolist()
    bare = tokenizer.encode_flat([prompt], add_special_tokens=False)[0].tolist()
    if tokenizer.eos_id in ids[-1:] and tokenizer.eos_id not in bare[-1:]:
        ids.pop()  # some put an end token behind every text, but this one is to go on
    if ids:
        return ids
    begin = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if begin is None:
        raise RefusedError(
            f"found an empty prompt, and {tokenizer.name} without a begin or end token; needed a token to begin with. "
            "Give a prompt."
        )
    return [begin]


def _stopping(sampling: SamplingConfig, tokenizer: Tokenizer) -> SamplingConfig:
    """Sampling that the end token stops too."""
    if tokenizer.eos_id is None or tokenizer.eos_id in sampling.stop_ids:
        return sampling
    return replace(sampling, stop_ids=(*sampling.stop_ids, tokenizer.eos_id))


def _behind(tokenizer: Tokenizer, prompt: Sequence[int], new: Sequence[int]) -> str:
    """The text of new ids behind a prompt: decoded together, for a space at the start of a text may be lost."""
    before, whole = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, [*prompt, *new]))
    return whole[len(before) :]


class GrowingText:
    """The text of ids that come one at a time, in pieces that no later id changes.

    A character may be made of several tokens: while the text ends in a part of one, all since the last piece is held
    back. Ids are decoded behind those of the last few pieces, so that the work does not grow with the text.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._pieces: deque[Sequence[int]] = deque([context], maxlen=4)
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """The text that is settled now, or nothing."""
        self._held.append(token)
        text = self.rest()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._pieces.append(self._held)
        self._held = []
        return text

    def rest(self) -> str:
        """The text that is held back."""
        return _behind(self._tokenizer, [one for piece in self._pieces for one in piece], self._held)
