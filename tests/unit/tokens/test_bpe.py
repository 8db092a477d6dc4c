"""Training a tokenizer of one's own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponente.config.errors import UserError
from ponente.tokens.bpe import train_bpe
from ponente.tokens.load import load_tokenizer

TEXTS = ["low lower lowest", "new newer newest, wide wider", "été, ärger; 漢字"] * 30


def test_a_trained_tokenizer_loads_and_knows_its_end(tmp_path: Path) -> None:
    folder = train_bpe(TEXTS, str(tmp_path / "mine"), vocab_size=285, special_tokens=["<eos>", "<x>"])
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (285, 0)
    assert tokenizer.special_ids == {0, 1}
    ids = tokenizer.encode_flat(["lowest<x>😀 never seen"])[0].tolist()
    assert tokenizer.decode(ids) == "lowest<x>😀 never seen"
    assert len(ids) < len("lowest<x>😀 never seen".encode())


def test_the_same_texts_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for number, parallel in enumerate(("true", "false", "true")):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", parallel)
        folder = train_bpe(iter(TEXTS), str(tmp_path / str(number)), vocab_size=400)
        files.append([Path(folder, name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")])
    assert files[0] == files[1] == files[2]
    assert json.loads(files[0][1])["eos_token"] == "<|endoftext|>"


def test_a_folder_in_memory_can_be_loaded(memory_place: str) -> None:
    assert load_tokenizer(train_bpe(TEXTS, memory_place, vocab_size=280)).vocab_size == 280


@pytest.fixture
def memory_place(tmp_path: Path) -> str:
    return f"memory://test-bpe{tmp_path}/mine"


def test_nothing_is_published_when_the_texts_fail(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield "one"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train_bpe(texts(), str(tmp_path / "mine"), vocab_size=300)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_is_there_stays(tmp_path: Path) -> None:
    folder = train_bpe(TEXTS, str(tmp_path / "mine"), vocab_size=280)
    before = Path(folder, "tokenizer.json").read_bytes()
    with pytest.raises(UserError, match="needed a new place"):
        train_bpe(TEXTS[:1], folder, vocab_size=270)
    assert Path(folder, "tokenizer.json").read_bytes() == before


def test_a_vocabulary_too_small_for_the_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 257 ids"):
        train_bpe(TEXTS, str(tmp_path / "mine"), vocab_size=256)
