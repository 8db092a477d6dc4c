"""The Hugging Face `tokenizers` library: slow, and by definition right."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from ponente.config.errors import UserError
from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.tokenizer import Ids, Offsets


class ReferenceEngine:
    """Ids as `tokenizers` gives them; the only one that knows where in the text a token lies."""

    name = f"tokenizers {tokenizers.__version__}"

    def __init__(self, definition: TokenizerDefinition) -> None:
        try:
            self._library = tokenizers.Tokenizer.from_str(definition.text)
        except Exception as error:  # the library raises no narrower one
            raise UserError(
                f"found {definition.name}, whose tokenizer.json {self.name} cannot read ({error}); needed a file of a "
                "version that it knows; upgrade tokenizers, or save the tokenizer again"
            ) from error

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[Ids, Offsets]:
        encodings: list[Any] = self._library.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        rows = [encoding.ids for encoding in encodings]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return np.fromiter(chain.from_iterable(rows), np.uint32, int(offsets[-1])), offsets

    def encode_aligned(self, text: str, *, add_special_tokens: bool) -> tuple[Ids, Offsets, Offsets]:
        encoding: Any = self._library.encode(text, add_special_tokens=add_special_tokens)
        ids = np.array(encoding.ids, np.uint32)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        begins, ends = places[:, 0].copy(), places[:, 1].copy()
        own = np.array(encoding.special_tokens_mask, bool) & (ends == 0)  # set there by the post-processor
        if own.any():  # they have no place of their own: before the text, or after it
            last = int(np.flatnonzero(~own)[-1]) if (~own).any() else len(ids)
            begins[last + 1 :] = ends[last + 1 :] = len(text)
        begins = np.maximum.accumulate(begins) if len(begins) else begins
        if len(ends):
            nexts = np.append(begins[1:], len(text) if not own[-1] else ends[-1])
            ends = np.where(own, ends, np.maximum(ends, nexts))
        return ids, begins, ends

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self._library.decode([int(one) for one in ids], skip_special_tokens=skip_special_tokens))
