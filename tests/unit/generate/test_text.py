"""Text for text, with a byte-level tokenizer whose characters may be made of several tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.generate.decode import generate
from ponente.generate.sampling import SamplingConfig
from ponente.generate.text import GrowingText, complete, encode_prompt, stream_text
from ponente.models.gpt2 import Gpt2Config
from ponente.models.parameters import is_parameter
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

TEXTS = ["Now is the winter", "naïve – “€” 日本語 👩‍👩‍👧", "  two  spaces ", "\n\ttabs\n", "é" * 30]

PROMPTS = ["Now is", "To be, or not to be: that"]
SAMPLING = SamplingConfig(max_new_tokens=60, temperature=1.0, seed=2)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: str) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Any:
    config = Gpt2Config(max_seq_len=128, hidden_dim=32, num_layers=2, num_heads=4, tie_word_embeddings=False)
    parameters, random = config.parameters(tokenizer.vocab_size + 50), np.random.default_rng(0)
    return jax.tree.map(
        lambda one: np.float32(one.mean + random.normal(0, 0.3, one.shape)), parameters, is_leaf=is_parameter
    )


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode_flat([text], add_special_tokens=False)[0].tolist()
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_grows_is_whole_at_every_piece_and_in_the_end(tokenizer: Tokenizer, text: str) -> None:
    growing, found = GrowingText(tokenizer, ids_of(tokenizer, "They say")), ""
    for token in ids_of(tokenizer, text):
        found += growing.add(token)
        assert text.startswith(found), "no piece is taken back, and none is a part of a character"
    assert found == text
    assert growing.rest() == ""


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["llama2", "mistral-v0.1", "gpt2", "qwen2.5", "llama3.1"])
def test_text_grows_with_real_tokenizers(shared_data: Callable[[str], Path], name: str, text: str) -> None:
    real = load_tokenizer(str(shared_data("tokenizers") / name), engine="tokenizers")
    prompt = encode_prompt(real, "They say")
    whole = encode_prompt(real, "They say" + text)
    behind = whole[len(prompt) :] if whole[: len(prompt)] == prompt else ids_of(real, text)
    expected = real.decode([*prompt, *behind], skip_special_tokens=True).removeprefix("They say")
    growing = GrowingText(real, prompt)
    assert "".join(growing.add(token) for token in behind) == expected


def test_a_part_of_a_character_is_held_back_until_it_is_the_end(tokenizer: Tokenizer) -> None:
    first, *others = ids_of(tokenizer, "€")
    growing = GrowingText(tokenizer, ids_of(tokenizer, "It costs "))
    assert growing.add(first) == ""
    assert growing.rest() == "\ufffd"
    assert "".join(growing.add(token) for token in others) == "€"


def test_bytes_that_are_no_text_hold_back_nothing_for_ever(tokenizer: Tokenizer) -> None:
    half = ids_of(tokenizer, "€")[0]
    growing = GrowingText(tokenizer, ids_of(tokenizer, "It costs "))
    assert growing.add(half) == ""
    assert growing.add(ids_of(tokenizer, "x")[0]) == "\ufffdx"


def test_texts_are_what_the_ids_say_whole_or_in_pieces(model: Any, tokenizer: Tokenizer) -> None:
    texts = complete(model, tokenizer, PROMPTS, SAMPLING)
    ids = generate(model, [encode_prompt(tokenizer, prompt) for prompt in PROMPTS], SAMPLING, vocab_size=400).ids
    for prompt, text, new in zip(PROMPTS, texts, ids, strict=True):
        assert prompt + text == tokenizer.decode([*encode_prompt(tokenizer, prompt), *new], skip_special_tokens=True)
    assert "".join(stream_text(model, tokenizer, PROMPTS[0], SAMPLING)) == texts[0]


def test_the_end_token_ends_a_text(model: Any, tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_id is not None
    certain = sure_of(model, tokenizer.eos_id)
    assert complete(certain, tokenizer, PROMPTS, SAMPLING) == ["", ""]
    assert list(stream_text(certain, tokenizer, PROMPTS[0], SAMPLING)) == []


def sure_of(model: Any, token: int) -> Any:
    """The model, sure of one token whatever comes before it."""
    head = jnp.zeros_like(model.w_head_DV).at[0, token].set(1000.0)
    return eqx.tree_at(
        lambda one: (one.norm_D, one.norm_bias_D, one.w_head_DV),
        model,
        (jnp.zeros_like(model.norm_D), jnp.ones_like(model.norm_D), head),
    )


def test_no_text_begins_with_the_begin_token(shared_data: Callable[[str], Path]) -> None:
    for name, begin in (("llama2", 1), ("gpt2", 50256), ("llama3.1", 128000)):
        real = load_tokenizer(str(shared_data("tokenizers") / name), engine="tokenizers")
        assert encode_prompt(real, "") == [begin]


def test_no_text_and_no_token_to_begin_with_is_refused(tiny_tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((Path(tiny_tokenizer) / "tokenizer.json").read_bytes())
    nameless = load_tokenizer(str(tmp_path))  # without the file that says which token begins and which ends
    assert encode_prompt(nameless, "Now is") == ids_of(nameless, "Now is")
    with pytest.raises(RefusedError, match=r"found an empty prompt, and .* without a begin or end token"):
        encode_prompt(nameless, "")
