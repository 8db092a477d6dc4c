"""Where in its text each token lies, for many texts at once.

In: texts, and their ids without added special tokens. Out: the characters at which each token begins and ends. Where
the bytes of its tokens are the bytes of a text, as in byte-level BPE, their lengths say it; else the library does.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ponente.tokens.formats.rows import offsets_of
from ponente.tokens.tokenizer import Ids, Offsets, Tokenizer


def align(tokenizer: Tokenizer, texts: Sequence[str], ids: Ids, offsets: Offsets) -> tuple[Offsets, Offsets]:
    """The character of its own text at which each token begins, and the one before which it ends."""
    begins, ends = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    exact = np.zeros(len(texts), bool)
    if tokenizer.id_bytes is not None and len(texts):
        exact = _align_by_bytes(tokenizer.id_bytes, texts, ids, offsets, begins, ends)
    for row in np.flatnonzero(~exact).tolist():
        own = slice(offsets[row], offsets[row + 1])
        found, begins[own], ends[own] = tokenizer.encode_aligned(texts[row], add_special_tokens=False)
        if not np.array_equal(found, ids[own]):
            raise ValueError(f"found other ids by {tokenizer.engine} than by the reference for {texts[row][:80]!a}")
    return begins, ends


def _align_by_bytes(
    id_bytes: tuple[NDArray[np.uint8], Offsets],
    texts: Sequence[str],
    ids: Ids,
    offsets: Offsets,
    begins: Offsets,
    ends: Offsets,
) -> NDArray[np.bool_]:
    """Fills `begins` and `ends` of the rows whose tokens' bytes are their text's, and says which rows these are."""
    table, starts = id_bytes
    encoded = [text.encode() for text in texts]
    sizes = np.array([len(one) for one in encoded], np.int64)
    widths = starts[ids + np.uint32(1)] - starts[ids]
    before = offsets_of(widths)  # bytes before each token, through all rows
    exact: NDArray[np.bool_] = before[offsets[1:]] - before[offsets[:-1]] == sizes
    chosen = np.repeat(exact, np.diff(offsets))
    ids, widths = ids[chosen], widths[chosen]
    token_at = offsets_of(widths)
    text_bytes = np.frombuffer(b"".join(one for one, fits in zip(encoded, exact, strict=True) if fits), np.uint8)
    token_bytes = table[np.repeat(starts[ids] - token_at[:-1], widths) + np.arange(token_at[-1])]
    row_at = offsets_of(sizes[exact])
    different = np.flatnonzero(text_bytes != token_bytes)
    rows = np.flatnonzero(exact)
    exact[rows[np.searchsorted(row_at, different, side="right") - 1]] = False
    # the number of the character that holds each byte, counted through all rows; one past the last at the end
    character = np.append(np.cumsum((text_bytes & 0xC0) != 0x80) - 1, 0)
    character[-1] = character[-2] + 1 if len(text_bytes) else 0
    row_of = np.repeat(np.arange(len(rows)), np.diff(offsets)[rows])
    first = character[row_at[:-1]][row_of]
    last_byte = np.maximum(token_at[1:] - 1, token_at[:-1])  # a token that ends within a character covers all of it
    begins[chosen] = character[token_at[:-1]] - first
    ends[chosen] = character[last_byte] + 1 - first
    return exact
