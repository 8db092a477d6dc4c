"""A tokenizer as data: the files of its folder, read once, and what of them the ids depend on.

In: the bytes of tokenizer.json (or vocab.json and merges.txt) and of the small files beside it. Out: one definition,
without truncation and padding, that every engine reads, and its fingerprint. Nothing of any library is needed.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from ponente.config.errors import UserError
from ponente.tokens.ending import with_end

logger = logging.getLogger(__name__)

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What a field that older or newer files leave out means; nothing of `_NO_MATTER` changes an id.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "dropout": (None,),
    "unk_token": (None,),
    "unk_id": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (False,),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
    "use_regex": (True,),
}
_NO_MATTER = ("trim_offsets", "cache_capacity")


@dataclass(frozen=True, kw_only=True)
class TokenizerDefinition:
    """All that is known of a tokenizer before any library has read it."""

    name: str
    text: str  # tokenizer.json as engines read it: without truncation and padding, perhaps with an end of texts
    post_processor: Any  # of the folder's own tokenizer.json
    vocab_size: int
    named_tokens: dict[str, str]  # {"eos_token": "</s>", …}
    bos_id: int | None
    eos_id: int | None
    special_ids: frozenset[int]
    chat_template: str | None

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """`text` as data."""
        return msgspec.json.decode(self.text, type=dict[str, Any])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what ids depend on, the same for every layout, key order and age of the file."""
        return _fingerprint({**self.parsed, "post_processor": self.post_processor}, self.bos_id, self.eos_id)

    def ids(self) -> dict[str, int]:
        """Every token with its id, added ones included."""
        return _ids(self.parsed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "parsed"}  # slow to send


def define(
    name: str,
    files: Mapping[str, bytes],
    *,
    ends_texts: bool = False,
    on_text: Callable[[bytes], None] | None = None,
) -> TokenizerDefinition:
    """The definition in the files of a folder; UserError where there is none.

    Args:
        name: as the user wrote it, for errors.
        files: the bytes of those of `TOKENIZER_FILES` that are there; tokenizer.json, or vocab.json with merges.txt, at
            least.
        ends_texts: whether the EOS, where there is one, is to be among the special tokens that are put around a text.
        on_text: is told what engines read as soon as it is known; the rest takes longer.
    """
    config = _object(name, "tokenizer_config.json", files)
    named = _named_tokens(config, _object(name, "special_tokens_map.json", files))
    if "tokenizer.json" in files:
        parts = _object(name, "tokenizer.json", files, msgspec.Raw)
    else:
        parts = _byte_level(name, files, config, named)
    own = _untrimmed(_plain(name, parts.get("post_processor")))
    around = _ended(name, parts, own, named.get("eos_token")) if ends_texts else own
    parts = {**parts, "truncation": None, "padding": None, "post_processor": around}
    text = msgspec.json.encode(parts)
    if on_text is not None:
        on_text(text)
    parsed = {key: _plain(name, part) for key, part in parts.items()}
    if not isinstance(parsed.get("model"), dict):
        raise UserError(
            f"found {name}/tokenizer.json without a model; needed a file that the `tokenizers` library wrote; "
            "save the tokenizer again with its own library, or give another folder"
        )
    ids = _ids(parsed)
    for role, token in list(named.items()):
        if token not in ids:
            logger.warning("%s names %r as its %s, which is not in its vocabulary; it has none", name, token, role)
            del named[role]
    special = {token["id"] for token in parsed.get("added_tokens") or [] if token.get("special")}
    special |= {ids[token] for role, token in named.items() if role in ("bos_token", "eos_token", "pad_token")}
    bos, eos = (ids[named[role]] if role in named else None for role in ("bos_token", "eos_token"))
    definition = TokenizerDefinition(
        name=name,
        text=text.decode(),
        post_processor=own,
        vocab_size=max(ids.values(), default=-1) + 1,
        named_tokens=named,
        bos_id=bos,
        eos_id=eos,
        special_ids=frozenset(special),
        chat_template=_chat_template(name, files, config),
    )
    definition.__dict__["parsed"] = parsed  # it is at hand
    return definition


def _object(name: str, file: str, files: Mapping[str, bytes], values: Any = Any) -> dict[str, Any]:
    if file not in files:
        return {}
    found: dict[str, Any] = _decoded(f"{name}/{file}", files[file], dict[str, values])
    return found


def _plain(name: str, part: Any) -> Any:
    """A part of tokenizer.json that may not have been decoded yet."""
    return _decoded(f"{name}/tokenizer.json", part, Any) if isinstance(part, msgspec.Raw) else part


def _decoded(place: str, data: Any, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"found {place} with {len(bytes(data))} bytes that are no JSON object ({error}); needed the file as "
            "it was published (a Git LFS pointer or half a download looks so); fetch it again"
        ) from error


def _ended(name: str, parts: Mapping[str, Any], processor: Any, end: str | None) -> Any:
    """The post-processor with the token `end` after each text; as it is where there is no such token."""
    added = {token["content"]: token["id"] for token in _plain(name, parts.get("added_tokens")) or []}
    number = added.get(end)
    if number is None and end is not None and "model" in parts:
        number = _ids({key: _plain(name, part) for key, part in parts.items()}).get(end)
    return processor if end is None or number is None else with_end(processor, end, number)


def _named_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for source in sources:
        for role in _NAMED:
            token = source.get(role)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(role, text)
    return named


def _ids(parsed: dict[str, Any]) -> dict[str, int]:
    """Every token with its id, added ones included."""
    vocabulary = parsed["model"].get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram: [token, score] by id
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    return vocabulary | {token["content"]: token["id"] for token in parsed.get("added_tokens") or []}


def _chat_template(name: str, files: Mapping[str, bytes], config: dict[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8")
    found = config.get("chat_template") or _object(name, "chat_template.json", files).get("chat_template")
    if isinstance(found, list):  # several, each with a name
        by_name = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = by_name.get("default")
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _untrimmed(processor: Any) -> Any:
    """The post-processor with offsets that cover a token's own spaces; ids are the same."""
    if not isinstance(processor, dict):
        return processor
    if "processors" in processor:
        return {**processor, "processors": [_untrimmed(one) for one in processor["processors"]]}
    return {**processor, "trim_offsets": False} if "trim_offsets" in processor else processor


def _byte_level(name: str, files: Mapping[str, bytes], config: dict[str, Any], named: dict[str, str]) -> dict[str, Any]:
    """tokenizer.json of a folder in the style of GPT-2: vocab.json and merges.txt."""
    vocabulary = _object(name, "vocab.json", files)
    lines = files["merges.txt"].decode("utf-8").split("\n")
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [line.rstrip("\r").split(" ") for line in lines if line.strip("\r")]
    if wrong := [pair for pair in merges if len(pair) != 2]:
        raise UserError(
            f"found {' '.join(wrong[0])!r} in {name}/merges.txt; needed two tokens a line, as GPT-2's file has them; "
            "fetch the file again"
        )
    if not named and "<|endoftext|>" in vocabulary:
        named.update(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    added = {token: int(number) for token, number in _object(name, "added_tokens.json", files).items()}
    for token in named.values():
        if token in vocabulary:
            added.setdefault(token, vocabulary[token])
    prefix_space = bool(config.get("add_prefix_space", False))
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token in named.values(),
            }
            for token, number in sorted(added.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _fingerprint(parsed: dict[str, Any], bos: int | None, eos: int | None) -> str:
    model = dict(parsed["model"])
    model.setdefault("type", "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece")
    if "merges" in model:  # "a b" in older files, ["a", "b"] in newer ones
        model["merges"] = "\n".join(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    relevant = {
        "model": _canonical(model),
        "normalizer": _canonical(parsed.get("normalizer")),
        "pre_tokenizer": _canonical(parsed.get("pre_tokenizer")),
        "post_processor": _canonical(_that_adds(parsed.get("post_processor"))),
        "added_tokens": sorted((dict(token) for token in parsed.get("added_tokens") or []), key=lambda one: one["id"]),
        "bos": bos,
        "eos": eos,
    }
    return hashlib.sha256(msgspec.json.encode(relevant, order="deterministic")).hexdigest()


def _that_adds(processor: Any) -> Any:
    """The post-processor without its parts that add no id."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        parts = [kept for one in processor.get("processors", []) if (kept := _that_adds(one)) is not None]
        return parts[0] if len(parts) == 1 else {"type": "Sequence", "processors": parts} if parts else None
    return None if processor.get("type") == "ByteLevel" else processor


def _canonical(part: Any) -> Any:
    """A part of tokenizer.json without what equals its default and what changes no id (not inside vocabularies)."""
    if isinstance(part, list):
        return [_canonical(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: value if key in ("vocab", "merges") else _canonical(value)
        for key, value in part.items()
        if key not in _NO_MATTER and not any(value is one or value == one for one in _DEFAULTS.get(key, ()))
    }
