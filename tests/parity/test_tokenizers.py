"""Ids of seven real tokenizers: those of `tokenizers`, by whichever engine, on real text and on the worst text."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.tokens.definition import define
from ponente.tokens.engine import trial_by
from ponente.tokens.fast import FastEngine
from ponente.tokens.files import read_folder
from ponente.tokens.formats import TextFormat
from ponente.tokens.formats.format import EncoderOptions
from ponente.tokens.load import load_tokenizer
from ponente.tokens.reference import ReferenceEngine
from ponente.tokens.tokenizer import Tokenizer

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("tokenizers.json").read_text())
HELLO_WORLD = {
    "gpt2": [15496, 995],
    "gpt-neox-20b": [12092, 1533],
    "smollm2": [19556, 905],
    "qwen2.5": [9707, 1879],
    "mistral-v0.1": [22557, 1526],
    "llama2": [15043, 3186],
    "llama3.1": [128000, 9906, 1917],
}
FACTS = {  # vocabulary, BOS, EOS
    "gpt2": (50257, 50256, 50256),
    "gpt-neox-20b": (50277, 0, 0),
    "smollm2": (49152, 1, 2),
    "qwen2.5": (151665, None, 151645),
    "mistral-v0.1": (32000, 1, 2),
    "llama2": (32000, 1, 2),
    "llama3.1": (128256, 128000, 128009),
}
SAMPLED_CHARACTERS = 1500
STRIDE = 150_000

SharedData = Callable[[str], Path]
every_tokenizer = pytest.mark.parametrize("name", sorted(HELLO_WORLD))


@cache
def load(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@cache
def engines(folder: Path) -> tuple[FastEngine, ReferenceEngine]:
    definition = define(folder.name, read_folder(str(folder)) or {})
    return FastEngine(definition.text), ReferenceEngine(definition)


def difference(folder: Path, texts: Sequence[str]) -> str | None:
    fast, reference = engines(folder)
    return trial_by(reference, texts).failure_of(fast)


@cache
def corpus_sample(folder: Path) -> tuple[str, ...]:
    """A piece of each stretch of every file, cut anywhere (in words, in CRLF, in what a reader would call a letter)."""
    files = sorted([*folder.glob("novels/*.txt"), *folder.glob("mixed/*.utf8"), *folder.rglob("input.txt"),
                    *folder.glob("wikitext-2/*.txt"), folder / "c4_demo.jsonl"])  # fmt: skip
    pieces = []
    for number, file in enumerate(files):
        text = file.read_bytes().decode("utf-8", "replace")
        stride = STRIDE if file.parent.name == "novels" else STRIDE // 6
        pieces += [text[at : at + SAMPLED_CHARACTERS] for at in range(997 * number % stride, len(text), stride)]
        pieces.append(text[:300])  # a byte order mark, if there is one
    return tuple(pieces)


@every_tokenizer
def test_ids_are_the_golden_ones_by_either_engine(shared_data: SharedData, name: str) -> None:
    tokenizer = load(shared_data("tokenizers") / name)
    assert tokenizer.engine.startswith("fastokens")
    assert difference(shared_data("tokenizers") / name, GOLDEN["texts"]) is None
    ids, offsets = tokenizer.encode_flat(GOLDEN["texts"])
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == GOLDEN["ids"][name]
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == FACTS[name]
    hello, _ = tokenizer.encode_flat(["Hello world"])
    assert hello.tolist()[-len(HELLO_WORLD[name]) :] == HELLO_WORLD[name]


@every_tokenizer
def test_a_tokenizer_that_ends_texts_itself_gives_the_same_rows(shared_data: SharedData, name: str) -> None:
    folder = shared_data("tokenizers") / name
    plain, ending = load(folder), load_tokenizer(str(folder), ends_texts=True)
    assert ending.engine.startswith("fastokens")
    assert ending.fingerprint == plain.fingerprint
    ids, _ = ending.encode_flat(["Hello world"])
    assert ids[-1] == FACTS[name][2] != plain.encode_flat(["Hello world"])[0][-1]
    texts = {"text": [*GOLDEN["texts"], *corpus_sample(shared_data("corpora"))[::50]]}
    rows, expected = (TextFormat().encoder(one, EncoderOptions())(texts) for one in (ending, plain))
    np.testing.assert_array_equal(rows.offsets, expected.offsets)
    np.testing.assert_array_equal(rows.columns["input_ids"], expected.columns["input_ids"])


@every_tokenizer
def test_the_fast_engine_gives_the_same_ids_on_real_corpora(shared_data: SharedData, name: str) -> None:
    sample = corpus_sample(shared_data("corpora"))
    assert sum(map(len, sample)) > 500_000
    assert difference(shared_data("tokenizers") / name, sample) is None


LETTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("ab '\n\r\t1\u00a0\u3000é字😀\u0301\u200d\ufe0f\x00▁Ġ"),
    st.sampled_from(
        ["<s>", "</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<unk>", "  ", "\n\n", "'s", "the", " a"]
    ),
)
TEXTS = st.lists(LETTERS, max_size=40).map("".join)


@every_tokenizer
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_the_fast_engine_gives_the_same_ids_on_any_text(shared_data: SharedData, name: str, texts: list[str]) -> None:
    assert difference(shared_data("tokenizers") / name, texts) is None


@every_tokenizer
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_tokens_lie_where_their_characters_are(shared_data: SharedData, name: str, text: str) -> None:
    tokenizer = load(shared_data("tokenizers") / name)
    ids, begins, ends = tokenizer.encode_aligned(text)
    assert ids.tolist() == tokenizer.encode_flat([text], add_special_tokens=False)[0].tolist()
    assert (np.diff(begins) >= 0).all()
    assert (ends > begins).all()
    covered = 0
    for number, begin, end in zip(ids.tolist(), begins.tolist(), ends.tolist(), strict=True):
        assert begin <= covered or not len(tokenizer.encode_flat([text[:begin]], add_special_tokens=False)[0])
        covered = max(covered, end)
        piece = tokenizer.decode([number])
        if piece.isalnum() and piece.isascii():
            assert piece in text[begin:end]  # neither a space before it nor a normalizer moves a word
    assert covered == len(text) or not len(ids)  # smollm2 has no token for some control characters


@every_tokenizer
def test_words_lie_where_they_stand(shared_data: SharedData, name: str) -> None:
    """Hand-made: spaces before words, combining marks that NFC joins, letters of several tokens, special tokens."""
    tokenizer = load(shared_data("tokenizers") / name)
    eos = tokenizer.decode([tokenizer.eos_id])  # type: ignore[list-item]
    text = f" one  e\u03017two 😀three{eos}four {eos} \u1100\u1161five"
    ids, begins, ends = tokenizer.encode_aligned(text)
    for word in ("one", "two", "three", "four", "five", eos):
        at = text.index(word)
        inside = [tokenizer.decode([i]).strip() for i, a, b in zip(ids, begins, ends, strict=True)
                  if a < at + len(word) and b > at and text[a:b].strip() in word]  # fmt: skip
        assert "".join(inside) == word


@every_tokenizer
def test_text_that_utf_8_cannot_hold_is_refused_as_a_value(shared_data: SharedData, name: str) -> None:
    tokenizer = load(shared_data("tokenizers") / name)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        tokenizer.encode_flat(["fine", "a\ud800"])
    with pytest.raises(TypeError):
        tokenizer.encode_aligned("a\ud800")


def test_gpt2_from_its_vocabulary_and_merges_is_gpt2(shared_data: SharedData, tmp_path: Path) -> None:
    folder = shared_data("tokenizers") / "gpt2"
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    made, real = load_tokenizer(str(tmp_path)), load(folder)
    assert (made.fingerprint, made.eos_id, made.vocab_size) == (real.fingerprint, real.eos_id, real.vocab_size)
    texts = [*GOLDEN["texts"], *corpus_sample(shared_data("corpora"))[::20]]
    assert made.encode_flat(texts)[0].tolist() == real.encode_flat(texts)[0].tolist()


@pytest.mark.skipif(find_spec("sentencepiece") is None, reason="sentencepiece is not installed")
def test_llama_2_from_its_sentencepiece_model_is_llama_2(shared_data: SharedData, tmp_path: Path) -> None:
    folder = shared_data("tokenizers") / "llama2"
    for file in ("tokenizer.model", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    made, real = load_tokenizer(str(tmp_path)), load(folder)
    texts = [*GOLDEN["texts"], *corpus_sample(shared_data("corpora"))[::5]]
    assert made.encode_flat(texts)[0].tolist() == real.encode_flat(texts)[0].tolist()
    assert made.eos_id == real.eos_id
