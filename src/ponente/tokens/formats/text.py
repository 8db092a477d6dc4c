"""Plain text: a document is its tokens and an EOS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponente.tokens.formats.format import INPUT_IDS, EncodedRows, Encoder, EncoderOptions, TokenFormat
from ponente.tokens.formats.rows import encode_texts, frame_of, offsets_of, only_rows, with_frame
from ponente.tokens.tokenizer import Tokenizer


@TokenFormat.register_subclass("text")
@dataclass(frozen=True, kw_only=True)
class TextFormat(TokenFormat):
    """A field of text, as the tokenizer encodes it (its own BOS included), with an EOS at the end."""

    text_key: str = "text"

    def fields(self) -> dict[str, Any]:
        return {self.text_key: str}

    def columns(self) -> tuple[str, ...]:
        return (INPUT_IDS,)

    def ends_texts(self, options: EncoderOptions) -> bool:
        return options.enforce_eos

    def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
        own = frame_of(tokenizer, enforce_eos=False)
        whole = frame_of(tokenizer, enforce_eos=options.enforce_eos)
        own_length = len(own.before) + len(own.after)
        nothing, missing = own.before[:0], whole.after[len(own.after) :]  # the EOS, where the tokenizer adds none

        def encode(values: Mapping[str, list[Any]]) -> EncodedRows:
            ids, offsets, bad = encode_texts(tokenizer, values[self.text_key], add_special_tokens=True)
            kept = np.diff(offsets) > own_length  # a text without a token of its own is an empty row
            ids, offsets = only_rows(ids, offsets, kept)
            if len(missing):
                ids = with_frame(ids, offsets, kept, nothing, missing)
                offsets = offsets_of(np.diff(offsets) + kept)
            return EncodedRows(columns={INPUT_IDS: ids}, offsets=offsets, bad=bad)

        return encode

    def identity(self, tokenizer: Tokenizer, options: EncoderOptions) -> dict[str, Any]:
        return {"type": "text", "text_key": self.text_key, "enforce_eos": options.enforce_eos}
