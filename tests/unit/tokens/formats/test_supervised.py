"""Supervised pairs: one text, of which the output counts."""

import json
from collections.abc import Callable
from pathlib import Path

import draccus
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.tokens.formats import SupervisedFormat
from ponente.tokens.formats.format import EncodedRows, EncoderOptions, TokenFormat
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

OPTIONS = EncoderOptions()
Counted = Callable[[Tokenizer, EncodedRows, int], str]


def test_the_output_and_the_end_count(tiny: Tokenizer, counted: Counted) -> None:
    values = {"prompt": ["What?", "Who", ""], "response": ["This, été.", "", "Alone"]}
    encoded = SupervisedFormat(separate_with="\n\n").encoder(tiny, OPTIONS)(values)
    assert counted(tiny, encoded, 0) == "What?\n\n⟦This, été.<|endoftext|>⟧"
    assert counted(tiny, encoded, 1) == "Who\n\n⟦<|endoftext|>⟧"
    assert counted(tiny, encoded, 2) == "\n\n⟦Alone<|endoftext|>⟧"
    everything = SupervisedFormat(mask_inputs=False).encoder(tiny, OPTIONS)(values)
    assert counted(tiny, everything, 0) == "⟦What?This, été.<|endoftext|>⟧"


def test_a_token_that_begins_in_the_input_does_not_count(tiny: Tokenizer, counted: Counted) -> None:
    encoded = SupervisedFormat().encoder(tiny, OPTIONS)({"prompt": ["Hello w"], "response": ["orld!"]})
    assert tiny.decode(tiny.encode_flat([" world"])[0][:1]) == " world"
    assert counted(tiny, encoded, 0) == "Hello world⟦!<|endoftext|>⟧"


@settings(max_examples=150, deadline=None)
@given(
    pairs=st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=15)] * 2), max_size=5),
    separator=st.sampled_from([None, " ", "\n### Response:\n"]),
)
def test_ids_are_those_of_the_text_as_a_whole(
    tiny: Tokenizer, pairs: list[tuple[str, str]], separator: str | None
) -> None:
    values = {"q": [one for one, _ in pairs], "a": [two for _, two in pairs]}
    form = SupervisedFormat(input_field="q", output_field="a", separate_with=separator)
    encoded = form.encoder(tiny, OPTIONS)(values)
    for number, (one, two) in enumerate(pairs):
        own = slice(encoded.offsets[number], encoded.offsets[number + 1])
        ids, mask = encoded.columns["input_ids"][own], encoded.columns["loss_mask"][own]
        if not one and not two:
            assert not len(ids)
            continue
        whole, begins, _ = tiny.encode_aligned(f"{one}{separator or ''}{two}")
        assert ids.tolist() == [*whole.tolist(), tiny.eos_id]
        start = len(one) + len(separator or "")
        assert mask.tolist() == [*(begins >= start).astype(int).tolist(), 1]
        assert mask.dtype == np.uint8


def test_a_tokenizer_with_bos_puts_it_before_the_input_uncounted(own_folder: Path, counted: Counted) -> None:
    path = own_folder / "tokenizer.json"
    single = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    processor = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": processor}))
    tokenizer = load_tokenizer(str(own_folder))
    encoded = SupervisedFormat().encoder(tokenizer, OPTIONS)({"prompt": ["Q ", "", "x"], "response": ["A", "", "y"]})
    assert counted(tokenizer, encoded, 0) == "<|im_start|>Q ⟦A<|endoftext|>⟧"
    assert counted(tokenizer, encoded, 1) == ""
    assert counted(tokenizer, encoded, 2) == "<|im_start|>x⟦y<|endoftext|>⟧"


def test_a_pair_that_is_no_text_is_named(tiny: Tokenizer, counted: Counted) -> None:
    values = {"prompt": ["a", None, "c"], "response": ["b", "x", "\ud800"]}
    encoded = SupervisedFormat().encoder(tiny, OPTIONS)(values)
    assert set(encoded.bad) == {1, 2}
    assert counted(tiny, encoded, 0) == "a⟦b<|endoftext|>⟧"


def test_identity_is_what_tokens_depend_on_and_not_packing(tiny: Tokenizer) -> None:
    one = SupervisedFormat(pack=False).identity(tiny, OPTIONS)
    assert one == SupervisedFormat().identity(tiny, OPTIONS)
    for other in (
        SupervisedFormat(mask_inputs=False),
        SupervisedFormat(separate_with=" "),
        SupervisedFormat(input_field="q"),
    ):
        assert other.identity(tiny, OPTIONS) != one


def test_yaml_gives_the_format() -> None:
    decoded = draccus.decode(
        TokenFormat, {"type": "supervised", "separate_with": "\n", "pack": 8, "mask_inputs": False}
    )
    assert decoded == SupervisedFormat(separate_with="\n", pack=8, mask_inputs=False)
