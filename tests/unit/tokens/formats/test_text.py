"""Text: as the tokenizer encodes it, with an EOS, and rows that cannot be encoded named."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.config.errors import UserError
from ponente.tokens.formats import TextFormat
from ponente.tokens.formats.format import EncodedRows, EncoderOptions, TokenFormat
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

OPTIONS = EncoderOptions()
NO_EOS = EncoderOptions(enforce_eos=False)


def rows(encoded: EncodedRows) -> list[list[int]]:
    ids = encoded.columns["input_ids"]
    assert ids.dtype == np.uint32
    assert len(ids) == encoded.offsets[-1]
    return [ids[a:b].tolist() for a, b in pairwise(encoded.offsets)]


def framed(folder: Path, *, before: bool, after: bool, ends_texts: bool) -> Tokenizer:
    """The tokenizer with a post-processor that puts BOS (1) before and EOS (0) after each text."""
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in
               (("<|im_start|>", 1), ("<|endoftext|>", 0))}  # fmt: skip
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [
        *([{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}] if before else []),
        *sequence,
        *([{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}] if after else []),
    ]
    path = folder / "tokenizer.json"
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    processor["pair"] = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": processor}))
    return load_tokenizer(str(folder), ends_texts=ends_texts)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=6))
def test_each_row_is_its_text_and_an_end(tiny: Tokenizer, texts: list[str]) -> None:
    encoded = TextFormat(text_key="body").encoder(tiny, OPTIONS)({"body": texts})
    alone = [tiny.encode_flat([text])[0].tolist() for text in texts]
    assert rows(encoded) == [[*ids, tiny.eos_id] if ids else [] for ids in alone]
    assert encoded.bad == {}
    bare = TextFormat(text_key="body").encoder(tiny, NO_EOS)({"body": texts})
    assert rows(bare) == alone


@pytest.mark.parametrize("ends_texts", [False, True])
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_what_the_tokenizer_adds_itself_is_there_once_and_an_empty_text_is_an_empty_row(
    own_folder: Path, tiny: Tokenizer, before: bool, after: bool, ends_texts: bool
) -> None:
    tokenizer = framed(own_folder, before=before, after=after, ends_texts=ends_texts)
    encoded = TextFormat().encoder(tokenizer, OPTIONS)({"text": ["Hello", "", "a<|endoftext|>"]})
    expected = [tiny.encode_flat([text])[0].tolist() for text in ("Hello", "a<|endoftext|>")]
    first, last = ([1] if before else [], [0])
    assert rows(encoded) == [[*first, *expected[0], *last], [], [*first, *expected[1], *last]]


OTHER_PROCESSORS = {  # and whether they can be told to end texts
    "none": (None, True),
    "bytes": ({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}, True),
    "bert": ({"type": "BertProcessing", "sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}, False),
}


@pytest.mark.parametrize(("processor", "can_end"), OTHER_PROCESSORS.values(), ids=OTHER_PROCESSORS)
def test_rows_end_alike_whoever_ends_them(own_folder: Path, processor: object, can_end: bool) -> None:
    path = own_folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": processor}))
    plain, ending = (load_tokenizer(str(own_folder), engine="tokenizers", ends_texts=ends) for ends in (False, True))
    texts = ["Hello", "", "a<|endoftext|>"]
    assert rows(TextFormat().encoder(ending, OPTIONS)({"text": texts})) == rows(
        TextFormat().encoder(plain, OPTIONS)({"text": texts})
    )
    assert (ending.encode_flat(["Hello"])[0][-1] == ending.eos_id) == can_end
    assert ending.fingerprint == plain.fingerprint


def test_rows_that_are_no_text_are_named_and_the_others_kept(tiny: Tokenizer) -> None:
    values = ["one", "cut \ud83d", None, "", "two"]
    encoded = TextFormat().encoder(tiny, OPTIONS)({"text": values})
    good = TextFormat().encoder(tiny, OPTIONS)({"text": ["one", "two"]})
    assert rows(encoded) == [rows(good)[0], [], [], [], rows(good)[1]]
    assert set(encoded.bad) == {1, 2}
    assert encoded.bad[1].startswith("found the lone surrogate '\\ud83d' at character 4; needed")
    assert encoded.bad[2].startswith("found NoneType where text was needed")


def test_a_tokenizer_without_an_end_is_refused_before_any_row(own_folder: Path) -> None:
    (own_folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(str(own_folder))
    with pytest.raises(UserError, match=r"has no EOS token.*data\.enforce_eos: false"):
        TextFormat().encoder(tokenizer, OPTIONS)
    assert TextFormat().encoder(tokenizer, NO_EOS)({"text": ["a"]}).offsets.tolist() == [0, 1]


def test_no_rows_give_no_rows(tiny: Tokenizer) -> None:
    encoded = TextFormat().encoder(tiny, OPTIONS)({"text": []})
    assert encoded.offsets.tolist() == [0]
    assert encoded.columns["input_ids"].dtype == np.uint32


def test_identity_is_what_tokens_depend_on(tiny: Tokenizer) -> None:
    assert TextFormat().identity(tiny, OPTIONS) != TextFormat(text_key="body").identity(tiny, OPTIONS)
    assert TextFormat().identity(tiny, OPTIONS) != TextFormat().identity(tiny, NO_EOS)
    template = EncoderOptions(chat_template="{{ messages }}")
    assert TextFormat().identity(tiny, OPTIONS) == TextFormat().identity(tiny, template)


def test_all_formats_are_known_by_name() -> None:
    assert {"text", "chat", "supervised", "prebuilt"} <= set(TokenFormat.get_known_choices())
