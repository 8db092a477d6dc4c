"""Where tokens lie, for many texts at once: what the library says one by one."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.tokens.formats.alignment import align
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

TEXTS = st.lists(
    st.text(st.one_of(st.sampled_from("ab \né字😀e\u0301\u212b\u0344"), st.characters(codec="utf-8"))), max_size=5
)


@pytest.fixture(scope="session")
def composing(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny tokenizer with a normalizer, so that tokens and text may differ in bytes."""
    folder = tmp_path_factory.mktemp("composing")
    parsed = json.loads((tiny_folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**parsed, "normalizer": {"type": "NFC"}}))
    return load_tokenizer(str(folder))


def assert_aligned(tokenizer: Tokenizer, texts: list[str]) -> None:
    ids, offsets = tokenizer.encode_flat(texts, add_special_tokens=False)
    begins, ends = align(tokenizer, texts, ids, offsets)
    one_by_one = [tokenizer.encode_aligned(text) for text in texts]
    for found, expected in ((begins, [row[1] for row in one_by_one]), (ends, [row[2] for row in one_by_one])):
        assert found.tolist() == np.concatenate([np.zeros(0, np.int64), *expected]).tolist()


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_bytes_say_where_tokens_lie_as_the_library_does(tiny: Tokenizer, texts: list[str]) -> None:
    assert_aligned(tiny, texts)


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_texts_that_a_normalizer_changes_are_aligned_too(composing: Tokenizer, texts: list[str]) -> None:
    assert_aligned(composing, texts)


def test_a_text_changed_to_another_of_as_many_bytes_is_noticed(composing: Tokenizer) -> None:
    same_size = "\u212b\u212b\u0344x"
    ids, _ = composing.encode_flat([same_size])
    assert len(composing.decode(ids).encode()) == len(same_size.encode())
    assert_aligned(composing, ["before", same_size, "", "after"])
