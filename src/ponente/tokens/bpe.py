"""Trains a byte-level BPE tokenizer of one's own and publishes it as a folder that every library loads."""

import json
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ponente.config.errors import UserError
from ponente.store.paths import absolute
from ponente.store.volume import publishing_folder, volume_of
from ponente.tokens.files import write_files

_BYTES = 256


def train_bpe(
    texts: Iterable[str],
    folder: str,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    chat_template: str | None = None,
) -> str:
    """Trains on `texts`, publishes `folder` (tokenizer.json, tokenizer_config.json), and gives its place.

    Args:
        vocab_size: the most ids that it may have: special tokens, then 256 bytes, then merges. A small corpus gives
            fewer. The same texts in the same order give the same file.
        special_tokens: get the first ids; the first of them is the end-of-text token.

    Example: `load_tokenizer(train_bpe(texts, "tokenizers/mine", vocab_size=32_000))`
    """
    least = len(special_tokens) + _BYTES
    if not special_tokens:
        raise UserError("found no special_tokens; needed an end-of-text token; leave them at their default")
    if vocab_size < least:
        raise UserError(
            f"found vocab_size {vocab_size} with {len(special_tokens)} special tokens; needed at least {least} ids, "
            "one for each of them and for each byte; raise vocab_size"
        )
    if isinstance(texts, str):
        raise UserError("found one text; needed several, each a str, to train on; give a list or an iterator of them")
    place = absolute(folder)
    if volume_of(place).published_folder(place) is not None:
        raise UserError(f"found a folder at {place}; needed a new place for the tokenizer; remove it, or name another")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special_tokens[0],
        "eos_token": special_tokens[0],
        "clean_up_tokenization_spaces": False,
        **({} if chat_template is None else {"chat_template": chat_template}),
    }
    with publishing_folder(place) as private:
        write_files(
            private,
            {
                "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
                "tokenizer_config.json": json.dumps(config, indent=2).encode(),
            },
        )
    return place
