"""A tokenizer of text: the reference library, and the fast one in front of it where it is exact."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ponente.tokens.choice import fast_engine
from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.engine import Engine, Trial, battery, trial_by
from ponente.tokens.reference import ReferenceEngine
from ponente.tokens.tokenizer import Ids, Offsets

logger = logging.getLogger(__name__)


class TextTokenizer:
    """A `Tokenizer` of a definition; whoever makes it decides whether there is a fast engine.

    With a `trial` instead, the fast engine is loaded when it is first needed and used if it passes, the reference only
    if it does not. So a tokenizer is sent to a process that only encodes: as little as possible is loaded there.
    """

    def __init__(
        self,
        definition: TokenizerDefinition,
        reference: ReferenceEngine | None = None,
        fast: Engine | None = None,
        *,
        trial: Trial | None = None,
    ) -> None:
        self._definition = definition
        self._trial = trial
        if reference is not None:
            self._reference = reference
        if trial is None:
            self._fast = fast

    @cached_property
    def _reference(self) -> ReferenceEngine:
        return ReferenceEngine(self._definition)

    @cached_property
    def _fast(self) -> Engine | None:
        assert self._trial is not None
        fast, reason = fast_engine(self._definition, self._trial)
        if fast is None:
            logger.warning("%s: tokenizing with %s, the slower engine: %s", self.name, ReferenceEngine.name, reason)
        return fast

    def __getstate__(self) -> dict[str, object]:
        if self._trial is None:
            raise TypeError(f"{self.name} has no trial; send what `tokens.load.on_trial` gives")
        return {"_definition": self._definition, "_trial": self._trial}

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def vocab_size(self) -> int:
        return self._definition.vocab_size

    @property
    def fingerprint(self) -> str:
        return self._definition.fingerprint

    @property
    def engine(self) -> str:
        return (self._fast or self._reference).name

    @property
    def bos_id(self) -> int | None:
        return self._definition.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._definition.eos_id

    @property
    def special_ids(self) -> frozenset[int]:
        return self._definition.special_ids

    @property
    def named_tokens(self) -> Mapping[str, str]:
        return self._definition.named_tokens

    @property
    def chat_template(self) -> str | None:
        return self._definition.chat_template

    @cached_property
    def id_bytes(self) -> tuple[NDArray[np.uint8], Offsets] | None:
        if not _is_byte_level(self._definition):
            return None
        added = {token["id"]: token["content"] for token in self._definition.parsed.get("added_tokens") or []}
        table = [b""] * self.vocab_size
        for token, number in self._definition.ids().items():
            if number not in added:
                try:
                    table[number] = bytes(_BYTE_OF[letter] for letter in token)
                except KeyError:  # a token that no text gives
                    table[number] = token.encode()
        for number, content in added.items():
            table[number] = content.encode()
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum([len(one) for one in table], out=offsets[1:])
        return np.frombuffer(b"".join(table), np.uint8), offsets

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> tuple[Ids, Offsets]:
        if self._fast is not None:
            try:
                return self._fast.encode_flat(texts, add_special_tokens=add_special_tokens)
            except (KeyboardInterrupt, SystemExit, TypeError, ValueError):
                raise
            except BaseException as error:  # noqa: BLE001 (a panic in Rust is no Exception)
                logger.warning("%s failed on %d texts (%s); tokenizing them again with %s", self._fast.name, len(texts),
                               error, self._reference.name)  # fmt: skip
        return self._reference.encode_flat(texts, add_special_tokens=add_special_tokens)

    def encode_aligned(self, text: str, *, add_special_tokens: bool = False) -> tuple[Ids, Offsets, Offsets]:
        return self._reference.encode_aligned(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._reference.decode(ids, skip_special_tokens=skip_special_tokens)

    def on_trial(self, sample: Sequence[str]) -> "TextTokenizer":
        """This tokenizer for other processes, where the fast engine must pass the battery and `sample` first."""
        trial = trial_by(self._reference, [*battery(self._definition), *sample])
        return TextTokenizer(self._definition, self._reference, trial=trial)


def _is_byte_level(definition: TokenizerDefinition) -> bool:
    parts = definition.parsed.get("pre_tokenizer") or {}
    steps = parts.get("pretokenizers", [parts]) if isinstance(parts, dict) else []
    return any(step.get("type") == "ByteLevel" and not step.get("add_prefix_space", True) for step in steps)


def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTE_OF = _byte_of_letter()
