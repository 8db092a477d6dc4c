from pathlib import Path

import pytest

from ponente.config.errors import UserError
from ponente.tokens.characters import character_tokenizer
from ponente.tokens.load import load_tokenizer

TEXT = "To be, or not to be:\nthat is the question.\n\nÆ → ü"


def test_each_character_is_one_id_and_comes_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(character_tokenizer([TEXT], str(tmp_path / "characters")))
    ids, _ = tokenizer.encode_flat([TEXT])
    characters = sorted(set(TEXT))
    assert ids.tolist() == [characters.index(character) for character in TEXT]
    assert tokenizer.vocab_size == len(characters)
    assert tokenizer.decode(ids.tolist()) == TEXT


def test_the_same_texts_give_the_same_files(tmp_path: Path) -> None:
    folders = [Path(character_tokenizer([TEXT], str(tmp_path / name))) for name in ("one", "two")]
    assert (folders[0] / "tokenizer.json").read_bytes() == (folders[1] / "tokenizer.json").read_bytes()


def test_no_text_and_a_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found no character"):
        character_tokenizer(["", ""], str(tmp_path / "none"))
    with pytest.raises(UserError, match="which is there already"):
        character_tokenizer([TEXT], str(tmp_path))
