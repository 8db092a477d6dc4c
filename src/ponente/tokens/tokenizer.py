"""The interface of a tokenizer: what formats and the build use, whichever library stands behind it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Offsets = NDArray[np.int64]


class Tokenizer(Protocol):
    """Text to ids and back; the ids are those of the Hugging Face `tokenizers` library, whatever computes them."""

    @property
    def name(self) -> str:
        """As the user wrote it: a folder, a URL, a hub name, or "passthrough"."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""

    @property
    def fingerprint(self) -> str:
        """A digest of all that ids depend on; padding, truncation and the file's layout do not matter."""

    @property
    def engine(self) -> str:
        """What computes the ids, for the log: "fastokens 0.3.5" or "tokenizers 0.23.3"."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens."""

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """The tokens that have a name, as chat templates know them: `{"bos_token": "<s>", "eos_token": "</s>"}`."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that came with it."""

    @property
    def id_bytes(self) -> tuple[NDArray[np.uint8], Offsets] | None:
        """The bytes that each id stands for, flat, with offsets by id; None where ids do not stand for bytes."""

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> tuple[Ids, Offsets]:
        """The ids of all texts, flat, and `len(texts) + 1` offsets into them.

        A text that UTF-8 cannot hold (a lone surrogate), or a value that is no text, is a ValueError or TypeError.
        """

    def encode_aligned(self, text: str, *, add_special_tokens: bool = False) -> tuple[Ids, Offsets, Offsets]:
        """The ids of one text, and where in it (in characters) each begins and ends; slower.

        Begins never decrease. A token that holds a part of a character covers all of it; a character that a normalizer
        took away belongs to the token before it.
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
