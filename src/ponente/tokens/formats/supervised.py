"""An input and the output wanted for it, as one text; the loss counts the output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponente.config import execution
from ponente.tokens.formats.alignment import align
from ponente.tokens.formats.format import INPUT_IDS, LOSS_MASK, EncodedRows, Encoder, EncoderOptions, TokenFormat
from ponente.tokens.formats.rows import encode_texts, frame_of, offsets_of, with_frame
from ponente.tokens.tokenizer import Tokenizer


@TokenFormat.register_subclass("supervised")
@dataclass(frozen=True, kw_only=True)
class SupervisedFormat(TokenFormat):
    """Input, separator and output, tokenized as one text with an EOS; the output and the EOS count."""

    input_field: str = "prompt"
    output_field: str = "response"
    separate_with: str | None = None
    pack: bool | int = execution(True)  # the loader's; no token depends on it
    mask_inputs: bool = True

    def fields(self) -> dict[str, Any]:
        return {self.input_field: str, self.output_field: str}

    def columns(self) -> tuple[str, ...]:
        return (INPUT_IDS, LOSS_MASK)

    def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
        frame = frame_of(tokenizer, enforce_eos=options.enforce_eos)
        separator = self.separate_with or ""
        before_counts = np.full(len(frame.before), not self.mask_inputs, np.uint8)
        after_counts = np.ones(len(frame.after), np.uint8)

        def encode(values: Mapping[str, list[Any]]) -> EncodedRows:
            pairs = list(zip(values[self.input_field], values[self.output_field], strict=True))
            texts = [
                f"{one}{separator}{two}" if isinstance(one, str) and isinstance(two, str) else None
                for one, two in pairs
            ]
            nothing = [one == "" and two == "" for one, two in pairs]
            texts = ["" if empty else text for text, empty in zip(texts, nothing, strict=True)]
            ids, offsets, bad = encode_texts(tokenizer, texts, add_special_tokens=False)
            lengths = np.diff(offsets)
            kept = lengths > 0
            counts = np.ones(len(ids), np.uint8)
            if self.mask_inputs:
                good = ["" if number in bad else str(text) for number, text in enumerate(texts)]
                begins, _ = align(tokenizer, good, ids, offsets)
                output_at = [
                    len(one) + len(separator) if keep else 0 for (one, _), keep in zip(pairs, kept, strict=True)
                ]
                counts = (begins >= np.repeat(np.array(output_at, np.int64), lengths)).astype(np.uint8)
            ids = with_frame(ids, offsets, kept, frame.before, frame.after)
            counts = with_frame(counts, offsets, kept, before_counts, after_counts)
            offsets = offsets_of(lengths + kept * (len(frame.before) + len(frame.after)))
            return EncodedRows(columns={INPUT_IDS: ids, LOSS_MASK: counts}, offsets=offsets, bad=bad)

        return encode

    def identity(self, tokenizer: Tokenizer, options: EncoderOptions) -> dict[str, Any]:
        return {
            "type": "supervised",
            "input_field": self.input_field,
            "output_field": self.output_field,
            "separate_with": self.separate_with or "",
            "mask_inputs": self.mask_inputs,
            "enforce_eos": options.enforce_eos,
        }
