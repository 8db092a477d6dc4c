"""What every format is: the fields it wants of a row, and the columns of tokens that it makes of them.

In: rows as `store.sources` reads them. Out: flat columns with offsets, `input_ids` always, and a `loss_mask` (0 or 1)
or `loss_weights` beside it where the format says which tokens count. A row that cannot be encoded is named, not raised.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import draccus
import numpy as np
from numpy.typing import NDArray

from ponente.tokens.tokenizer import Tokenizer

INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"  # uint8
LOSS_WEIGHTS = "loss_weights"  # float32


@dataclass(frozen=True, kw_only=True)
class EncodedRows:
    """Rows as tokens: row i is `column[offsets[i]:offsets[i + 1]]` of each column; a bad row is empty and named."""

    columns: dict[str, NDArray[Any]]
    offsets: NDArray[np.int64]
    bad: dict[int, str] = field(default_factory=dict)  # index among these rows -> found, needed, what to do


Encoder = Callable[[Mapping[str, list[Any]]], EncodedRows]


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """What all formats of a data config share."""

    enforce_eos: bool = True
    chat_template: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenFormat(draccus.ChoiceRegistry):
    """A format. Register your own: `@TokenFormat.register_subclass("mine")` on a frozen dataclass."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "text"

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The fields that a row must have, with their types as msgspec knows them: `{"text": str}`."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns it makes, `input_ids` first."""

    def ends_texts(self, options: EncoderOptions) -> bool:
        """Whether the tokenizer had better put the EOS among its own special tokens, because the encoder wants it."""
        return False

    @abstractmethod
    def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
        """A function from the values of some rows to their tokens; fails here, early, if it never could."""

    @abstractmethod
    def identity(self, tokenizer: Tokenizer, options: EncoderOptions) -> dict[str, Any]:
        """All that its tokens depend on besides rows and tokenizer, as JSON: stored in the ledger and compared."""
