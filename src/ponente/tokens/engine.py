"""Whether two engines give the same ids: a small battery of the strings that tokenizers get wrong, and any sample.

In: two engines and texts. Out: None where all ids are equal, else the reason for not using the one on trial.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.tokenizer import Ids, Offsets

_WORDS = "The quick brown fox, don't you'LL I'VE O'ſ 3.14159 1234567 x_y __init__ http://a.b/c?d=e&f#g"
_SCRIPTS = "Ελληνικά Русский עברית العربية हिन्दी ไทย 日本語 ひらがな カタカナ 한국어 中文，。 ǅ ﬁ ① Ⅷ ² ½ ʰ ª İ ı K Å"
_EMOJI = "👨‍👩‍👧‍👦🏳️‍🌈🇪🇸👍🏽 😀 ☠️ 1️⃣"
_MARKS = (
    "e\u0301 a\u0323\u0307 \u0301x q\u0338 \u1100\u1161\u11a8 \uac00\u11a8 \u0344 \u212b \u2126 " + "o" + "\u0308" * 40
)
_SPACES = " \u00a0\u1680\u2000\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u0085\u180e\u200b\u200c\u2060\ufeff"
_CONTROLS = "".join(map(chr, range(32))) + "\x7f\x80\x9f"
_ODD = "\ue000\uf8ff\U000f0000\U0010ffff\ufffe\uffff\ufffd\U0001d7ce\u0660\u0966 ▁ ▁▁ Ġ Ċ <0x0A> <unk> [UNK] <|"
_LINES = ("a\rb", "\r", "\r\r\n\n\r", "a \r\n b\t\n\t c", "\n\n\n x", "  x  ", "\t\t\tx", "x\n", " \n \n")
_MANY_ADDED = 24


class Engine(Protocol):
    """What computes ids."""

    @property
    def name(self) -> str: ...

    def encode_flat(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[Ids, Offsets]: ...


def battery(definition: TokenizerDefinition) -> list[str]:
    """Strings on which a wrong tokenizer shows itself, its own added tokens among them."""
    texts = ["", " ", "\x00", "a\x00b", _WORDS, _WORDS.upper(), _SCRIPTS, _EMOJI, _MARKS, _CONTROLS, _ODD, *_LINES]
    texts += [f"a{space}b{space}{space}c" for space in _SPACES] + [_SPACES, _SPACES * 3 + "x"]
    texts += [one * count for one in ("a", " ", "\n", "\r\n", "=", "1", "é", "字", "😀", "'s") for count in (7, 300)]
    texts += ["z" * 3000, "Donaudampfschifffahrt" * 60, "".join(chr(97 + i * i % 26) for i in range(2000)), "ab" * 700]
    added = definition.parsed.get("added_tokens") or []
    plain = [token for token in added if not token.get("special")]
    stripping = [token for token in added if token.get("lstrip") or token.get("rstrip") or token.get("single_word")]
    chosen = [*added[:_MANY_ADDED], *added[-_MANY_ADDED:], *plain[:_MANY_ADDED], *stripping[:_MANY_ADDED]]
    for token in dict.fromkeys(token["content"] for token in chosen):
        texts += [
            token,
            f"x{token}y",
            f" x {token} y ",
            f"\n{token}\n",
            f"{token}{token}",
            f"é\t{token}\u3000{token[:-1]}",
        ]
        texts += [f"{token[:-1]} {token[1:]}", f"e\u0301{token}\u0301", f"{token.upper()}{token}s"]
    return texts


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Texts with the right ids, without and with special tokens; it can be sent to other processes."""

    texts: list[str]
    answers: tuple[tuple[Ids, Offsets], tuple[Ids, Offsets]]

    def failure_of(self, engine: Engine) -> str | None:
        """Why `engine` must not be used in place of the reference; None where its ids are right for all texts."""
        for add_special_tokens in (True, False):
            expected, ends = self.answers[add_special_tokens]
            try:
                found, found_ends = engine.encode_flat(self.texts, add_special_tokens=add_special_tokens)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 (a panic in Rust is no Exception)
                return f"{engine.name} failed ({type(error).__name__}: {error})"
            if not (np.array_equal(ends, found_ends) and np.array_equal(expected, found)):
                return _first_difference(engine, self.texts, (expected, ends), (found, found_ends))
        return None


def trial_by(reference: Engine, texts: Sequence[str]) -> Trial:
    """A trial whose right answers are those of `reference`."""
    without, with_special = (reference.encode_flat(texts, add_special_tokens=add) for add in (False, True))
    return Trial(texts=list(texts), answers=(without, with_special))


def _first_difference(
    trial: Engine, texts: Sequence[str], expected: tuple[Ids, Offsets], found: tuple[Ids, Offsets]
) -> str:
    for number, text in enumerate(texts):
        right, wrong = (ids[ends[number] : ends[number + 1]] for ids, ends in (expected, found))
        if not np.array_equal(right, wrong):
            return f"{trial.name} gives other ids for {text[:80]!a}: {wrong[:12].tolist()}, not {right[:12].tolist()}"
    return f"{trial.name} gives other ids"
