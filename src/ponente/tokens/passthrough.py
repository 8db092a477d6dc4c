"""The tokenizer of data that is already tokens: it knows the size of the vocabulary and encodes nothing."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from ponente.config.errors import UserError
from ponente.tokens.tokenizer import Ids, Offsets

PASSTHROUGH = "passthrough"


class PassthroughTokenizer:
    """A `Tokenizer` for `format: prebuilt`."""

    name = PASSTHROUGH
    engine = "none (the data are token ids)"
    bos_id = None
    eos_id = None
    special_ids: frozenset[int] = frozenset()
    named_tokens: Mapping[str, str] = {}
    chat_template = None
    id_bytes = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def fingerprint(self) -> str:
        return f"{PASSTHROUGH}-{self.vocab_size}"

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> tuple[Ids, Offsets]:
        _refuse()

    def encode_aligned(self, text: str, *, add_special_tokens: bool = False) -> tuple[Ids, Offsets, Offsets]:
        _refuse()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        _refuse()


def _refuse() -> NoReturn:
    raise UserError(
        "found tokenizer: passthrough where text is to be encoded or decoded; needed a tokenizer that knows text; set "
        "data.tokenizer to a folder or hub name, or use format: prebuilt for data that are token ids"
    )
