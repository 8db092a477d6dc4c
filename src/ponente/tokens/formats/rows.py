"""Rows of text as rows of ids, with what stands before and after each; a text that cannot be encoded is a bad row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import UserError
from ponente.tokens.tokenizer import Ids, Offsets, Tokenizer

_Number = TypeVar("_Number", np.uint32, np.uint8)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The ids that stand before and after every text."""

    before: Ids
    after: Ids


def frame_of(tokenizer: Tokenizer, *, enforce_eos: bool) -> Frame:
    """What the tokenizer itself puts around a text, and the EOS after it where that is wanted and not there."""
    whole, _ = tokenizer.encode_flat(["a"], add_special_tokens=True)
    bare, _ = tokenizer.encode_flat(["a"], add_special_tokens=False)
    starts = [at for at in range(len(whole) - len(bare) + 1) if np.array_equal(whole[at : at + len(bare)], bare)]
    start = starts[0] if starts else 0
    after = whole[start + len(bare) :]
    if enforce_eos and (not len(after) or after[-1] != tokenizer.eos_id):
        after = np.append(after, np.uint32(eos_of(tokenizer)))
    return Frame(before=whole[:start], after=after)


def eos_of(tokenizer: Tokenizer) -> int:
    """The id of the end-of-text token; UserError where there is none."""
    if tokenizer.eos_id is None:
        raise UserError(
            f"found that the tokenizer {tokenizer.name} has no EOS token, and enforce_eos: true; needed one after each "
            "document; name it as eos_token in the folder's tokenizer_config.json, or set data.enforce_eos: false"
        )
    return tokenizer.eos_id


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[Any], *, add_special_tokens: bool
) -> tuple[Ids, Offsets, dict[int, str]]:
    """The ids of all texts that can be encoded, and why the others (whose rows are empty) cannot be."""
    try:
        return *tokenizer.encode_flat(texts, add_special_tokens=add_special_tokens), {}
    except (TypeError, ValueError):
        bad = {number: why for number, text in enumerate(texts) if (why := _why_not(text)) is not None}
        if not bad:
            raise
    good = [text for number, text in enumerate(texts) if number not in bad]
    ids, ends = tokenizer.encode_flat(good, add_special_tokens=add_special_tokens)
    lengths = np.zeros(len(texts), np.int64)
    lengths[[number for number in range(len(texts)) if number not in bad]] = np.diff(ends)
    return ids, offsets_of(lengths), bad


def _why_not(text: Any) -> str | None:
    if not isinstance(text, str):
        return f"found {type(text).__name__} where text was needed; mend the row, or name another field"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return (
            f"found the lone surrogate {text[error.start]!a} at character {error.start}; needed text that UTF-8 can "
            "hold; mend the row (it was cut in the middle of a character, or decoded wrongly)"
        )
    return None


def offsets_of(lengths: NDArray[np.int64]) -> Offsets:
    """The offsets of rows of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def only_rows(column: NDArray[_Number], offsets: Offsets, kept: NDArray[np.bool_]) -> tuple[NDArray[_Number], Offsets]:
    """The column with every row emptied that is not `kept`."""
    if kept.all():
        return column, offsets
    lengths = np.diff(offsets)
    return column[np.repeat(kept, lengths)], offsets_of(np.where(kept, lengths, 0))


def with_frame(
    column: NDArray[_Number],
    offsets: Offsets,
    kept: NDArray[np.bool_],
    before: NDArray[_Number],
    after: NDArray[_Number],
) -> NDArray[_Number]:
    """The column with `before` and `after` around every row that is `kept`; the others stay as they are."""
    starts, ends = offsets[:-1][kept], offsets[1:][kept]
    # A row's end is the next one's start: in the order of the rows, `before` and `after` alternate as they should.
    places = np.stack([starts, ends], axis=1)
    counts = np.tile(np.array([len(before), len(after)]), len(starts))
    values = np.tile(np.concatenate([before, after]), len(starts))
    return np.insert(column, np.repeat(places.reshape(-1), counts), values)
