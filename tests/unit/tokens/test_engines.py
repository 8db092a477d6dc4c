"""The fast engine is used only where its ids are those of the reference."""

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from ponente.config.errors import UserError
from ponente.tokens.definition import TokenizerDefinition, define
from ponente.tokens.engine import Trial, battery, trial_by
from ponente.tokens.fast import FastEngine
from ponente.tokens.load import load_tokenizer, on_trial
from ponente.tokens.reference import ReferenceEngine
from ponente.tokens.text_tokenizer import TextTokenizer
from ponente.tokens.tokenizer import Ids, Offsets, Tokenizer


@pytest.fixture(scope="session")
def definition(tiny_folder: Path) -> TokenizerDefinition:
    return define("tiny", {file.name: file.read_bytes() for file in tiny_folder.iterdir()})


@pytest.fixture(scope="session")
def engines(definition: TokenizerDefinition) -> tuple[FastEngine, ReferenceEngine]:
    return FastEngine(definition.text), ReferenceEngine(definition)


class Wrong:
    """An engine that is wrong about texts that hold some string."""

    name = "wrong 1.0"

    def __init__(self, definition: TokenizerDefinition, trigger: str, *, panics: bool = False) -> None:
        self._right, self._trigger, self._panics = ReferenceEngine(definition), trigger, panics

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[Ids, Offsets]:
        ids, offsets = self._right.encode_flat(texts, add_special_tokens=add_special_tokens)
        for number, text in enumerate(texts):
            if self._trigger in text:
                if self._panics:
                    raise BaseException("called `Option::unwrap()` on a `None` value")
                ids[offsets[number]] ^= 1
        return ids, offsets


def test_the_fast_engine_is_used_where_it_is_exact(tiny: Tokenizer, tiny_folder: Path) -> None:
    assert tiny.engine.startswith("fastokens ")
    assert load_tokenizer(str(tiny_folder), engine="tokenizers").engine.startswith("tokenizers ")
    assert load_tokenizer(str(tiny_folder), engine="fastokens").engine.startswith("fastokens ")


@pytest.mark.parametrize(
    "trigger",
    [
        "\x00",
        "\r",
        "\u0301",
        "\u3000",
        "\u2028",
        "\u200d",
        "x<|im_end|>y",
        "\U0010ffff",
        "z" * 2000,
        "𝟎",
        "😀" * 100,
        "İ",
    ],
)
def test_the_battery_finds_an_engine_that_is_wrong_somewhere(definition: TokenizerDefinition, trigger: str) -> None:
    reason = trial_by(ReferenceEngine(definition), battery(definition)).failure_of(Wrong(definition, trigger))
    assert reason is not None
    assert "wrong 1.0 gives other ids for" in reason


def test_the_battery_holds_the_added_tokens_that_strip_spaces(own_folder: Path) -> None:
    file = own_folder / "tokenizer.json"
    parsed = json.loads(file.read_text())
    like = parsed["added_tokens"][0]
    many = [{**like, "id": 600 + n, "content": f"<plain_{n}>"} for n in range(100)]
    many[50] |= {"content": "<strips>", "lstrip": True, "rstrip": True}
    parsed["added_tokens"] += many
    own = define("own", {"tokenizer.json": json.dumps(parsed).encode()})
    assert any(" <strips> " in text for text in battery(own))
    assert trial_by(ReferenceEngine(own), battery(own)).failure_of(Wrong(own, "<strips>")) is not None


def test_a_panic_of_the_engine_is_a_reason_and_no_crash(definition: TokenizerDefinition) -> None:
    reason = trial_by(ReferenceEngine(definition), ["a"]).failure_of(Wrong(definition, "a", panics=True))
    assert reason == "wrong 1.0 failed (BaseException: called `Option::unwrap()` on a `None` value)"


def test_a_batch_on_which_the_fast_engine_fails_is_done_by_the_reference(
    definition: TokenizerDefinition, caplog: pytest.LogCaptureFixture
) -> None:
    reference = ReferenceEngine(definition)
    tokenizer = TextTokenizer(definition, reference, Wrong(definition, "boom", panics=True))
    ids, offsets = tokenizer.encode_flat(["fine", "boom"])
    expected, ends = reference.encode_flat(["fine", "boom"], add_special_tokens=True)
    assert (ids.tolist(), offsets.tolist()) == (expected.tolist(), ends.tolist())
    assert "wrong 1.0 failed on 2 texts" in caplog.text


def test_a_tokenizer_on_trial_tries_the_fast_engine_where_it_is_sent(tiny: Tokenizer) -> None:
    sent = on_trial(tiny, ["Hello", "lone \ud800 surrogate", "été"])
    there = pickle.loads(pickle.dumps(sent))  # noqa: S301 (our own)
    assert there.engine.startswith("fastokens ")
    assert there.fingerprint == tiny.fingerprint
    texts = ["Hello world", "", "été <|im_end|>"]
    assert [part.tolist() for part in there.encode_flat(texts)] == [part.tolist() for part in tiny.encode_flat(texts)]
    assert on_trial(load_tokenizer("passthrough", vocab_size=3), ["Hello"]).vocab_size == 3


def test_an_engine_that_fails_the_sample_is_not_used_by_any_worker(
    definition: TokenizerDefinition, tiny: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    right = trial_by(ReferenceEngine(definition), ["Hello", "a ponente"])
    assert right.failure_of(Wrong(definition, "ponente")) is not None
    assert right.failure_of(Wrong(definition, "levante")) is None
    (without, (ids, offsets)) = right.answers
    spoilt = Trial(texts=right.texts, answers=(without, (ids ^ 1, offsets)))  # as if the fast engine differed
    tokenizer = pickle.loads(pickle.dumps(TextTokenizer(definition, trial=spoilt)))  # noqa: S301 (our own)
    assert tokenizer.engine.startswith("tokenizers ")
    assert tokenizer.encode_flat(["Hello"])[0].tolist() == tiny.encode_flat(["Hello"])[0].tolist()
    assert "the slower engine: fastokens" in caplog.text and "gives other ids for" in caplog.text


def test_a_tokenizer_that_the_fast_engine_cannot_do_falls_back_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = Library(models.WordPiece({"[UNK]": 0, "hello": 1, "##s": 2}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.engine.startswith("tokenizers ")
    assert tokenizer.encode_flat(["Hellos hello"])[0].tolist() == [1, 2, 1]
    assert "the slower engine: fastokens" in caplog.text
    with pytest.raises(UserError, match="fastokens is not exact"):
        load_tokenizer(str(tmp_path), engine="fastokens")


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_both_engines_give_the_same_ids_and_decode_to_the_text(
    engines: tuple[FastEngine, ReferenceEngine], texts: list[str]
) -> None:
    fast, reference = engines
    ids, offsets = fast.encode_flat(texts, add_special_tokens=True)
    expected, ends = reference.encode_flat(texts, add_special_tokens=True)
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    assert (ids.tolist(), offsets.tolist()) == (expected.tolist(), ends.tolist())
    rows = [ids[a:b] for a, b in pairwise(offsets)]
    assert [reference.decode(row, skip_special_tokens=False) for row in rows] == texts


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("ab \n\té字😀e\u0301\u200d<|im_end|>'s1")))
def test_tokens_lie_where_their_characters_are(tiny: Tokenizer, text: str) -> None:
    ids, begins, ends = tiny.encode_aligned(text)
    assert ids.tolist() == tiny.encode_flat([text], add_special_tokens=False)[0].tolist()
    covered = 0
    for number, begin, end in zip(ids.tolist(), begins.tolist(), ends.tolist(), strict=True):
        assert begin <= covered  # no gap; a character may be in several tokens
        assert begin < end
        piece = tiny.decode([number])
        assert "\ufffd" in piece or text[begin:end] == piece
        covered = max(covered, end)
    assert covered == len(text)
    assert (np.diff(begins) >= 0).all()
