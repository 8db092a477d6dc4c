"""A tokenizer of single characters, for small models: one id for each character of a text."""

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ponente.config.errors import UserError
from ponente.store.paths import absolute
from ponente.store.volume import publishing_folder, volume_of
from ponente.tokens.files import write_files


def character_tokenizer(texts: Iterable[str], folder: str) -> str:
    """Publishes `folder` with a tokenizer of all characters of `texts`, in order of their code points.

    Example: `load_tokenizer(character_tokenizer([text], "tokenizers/characters"))`
    """
    place = absolute(folder)
    if volume_of(place).exists(place):
        raise UserError(f"found {folder}, which is there already; needed a new folder; remove it or choose another")
    characters = sorted({character for text in texts for character in text})
    if not characters:
        raise UserError("found no character in the texts; needed at least one; give a text that is not empty")
    tokenizer = Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    with publishing_folder(place) as private:
        files = {
            "tokenizer.json": tokenizer.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(settings, indent=2),
        }
        write_files(private, {name: text.encode() for name, text in files.items()})
    return place
