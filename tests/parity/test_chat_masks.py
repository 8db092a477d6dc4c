"""Loss masks of real chat templates, against an oracle that shares no code with them.

The rendering is transformers' own; which characters count is written by hand for each template, from the contents.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.tokens.formats import ChatFormat
from ponente.tokens.formats.format import EncodedRows, Encoder, EncoderOptions
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

SharedData = Callable[[str], Path]
Turn = tuple[str, str]

LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
THINKING = """
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and not loop.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
GENERATION = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
"""


def plain(content: str, last: bool) -> str:
    return content


def trimmed(content: str, last: bool) -> str:
    return content.strip()


def unthinking(content: str, last: bool) -> str:
    return content if last else content.split("</think>")[-1].lstrip("\n")


@dataclass(frozen=True)
class Case:
    """A tokenizer, a template (its own if None), and what stands around a turn in it."""

    tokenizer: str
    template: str | None
    shown: Callable[[str, bool], str]
    user: tuple[str, str]
    assistant: tuple[str, str, str]  # before what counts; the end token, which counts, and what comes between
    first: str = ""


CHATML_USER = ("<|im_start|>user\n", "<|im_end|>\n")
CHATML = ("<|im_start|>assistant\n", "", "<|im_end|>")
SMOL = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QWEN = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
LLAMA3_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
CASES = {
    "smollm2": Case("smollm2", None, plain, CHATML_USER, CHATML, SMOL),
    "qwen2.5": Case("qwen2.5", None, plain, CHATML_USER, CHATML, QWEN),
    "llama3.1": Case("llama3.1", None, trimmed, (LLAMA3_HEADER.format("user"), "<|eot_id|>"),
                     (LLAMA3_HEADER.format("assistant"), "", "<|eot_id|>"), "<|begin_of_text|>"),
    "llama2 style": Case("llama2", LLAMA2, trimmed, ("<s>[INST] ", " [/INST]"), (" ", " ", "</s>")),
    "llama2 style, bytes": Case("smollm2", LLAMA2, trimmed, ("<|im_start|>[INST] ", " [/INST]"),
                                (" ", " ", "<|im_end|>")),
    "qwen3 style": Case("qwen2.5", THINKING, unthinking, CHATML_USER, CHATML),
    "generation": Case("smollm2", GENERATION, plain, CHATML_USER, CHATML),
}  # fmt: skip
AFTER_END = {"<|im_end|>": "\n"}  # what ChatML writes after a turn of the assistant


@cache
def load(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@cache
def encoder(folder: Path, template: str | None) -> Encoder:
    return ChatFormat(chat_template=template).encoder(load(folder), EncoderOptions())


@cache
def oracle(folder: Path) -> Any:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers = pytest.importorskip("transformers")
    named = dict(load(folder).named_tokens)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **named)


def expected(case: Case, turns: list[Turn]) -> tuple[str, list[tuple[int, int, int]]]:
    """The rendering by hand, and the spans that count: (how far back a space may be taken along, start, end)."""
    text, spans = case.first, []
    for number, (role, content) in enumerate(turns):
        if role == "user":
            shown = content.strip() if case.shown is trimmed else content
            text += case.user[0] + shown + case.user[1]
            continue
        before, gap, end = case.assistant
        words = case.shown(content, number == len(turns) - 1)
        text += before
        lead = 1 if before == " " else 0
        spans.append((len(text) - lead, len(text), len(text) + len(words)))
        text += words + gap
        spans.append((len(text), len(text), len(text) + len(end)))
        text += end + (AFTER_END.get(end, "") if case.template != LLAMA2 else "")
    return text, spans


PIECES = st.sampled_from(
    ["a", "Hello", " world", "the", "\n", "\n\n", " ", "  ", "\t", "é", "e\u0301", "字", "😀", "👨‍👩‍👧", "\r\n", "1",
     "'s", "<|im_end|>", "<|im_start|>", "assistant\n", "user", "<|eot_id|>", "</s>", "<s>", "[/INST]", "[INST]",
     "<think>", "</think>", "<think>\nhm\n</think>\n\n", "{{ x }}", "{% if %}", "\x00", "\U000f0000", "\U000f0001",
     "<|endoftext|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "!", ".", "x" * 30]
)  # fmt: skip
CONTENT = st.lists(PIECES, max_size=6).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    pool = draw(st.lists(CONTENT, min_size=1, max_size=4))  # few, so that turns repeat each other
    count = draw(st.integers(1, 7))
    return [(("user", "assistant")[at % 2], draw(st.sampled_from(pool))) for at in range(count)]


def oracle_mask(tokenizer: Tokenizer, text: str, spans: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Token by token from the slow alignment: it begins in a span (or in the space before it) and ends in it."""
    ids, begins, ends = tokenizer.encode_aligned(text)
    mask = [
        int(any(lead <= begin < stop and end > start and start < stop for lead, start, stop in spans))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return ids.tolist(), mask


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(conversations(), min_size=1, max_size=3))
def test_exactly_the_assistants_words_and_end_tokens_count(
    shared_data: SharedData, name: str, rows: list[list[Turn]]
) -> None:
    case = CASES[name]
    folder = shared_data("tokenizers") / case.tokenizer
    tokenizer = load(folder)
    messages = [[{"role": role, "content": content} for role, content in turns] for turns in rows]
    encoded = encoder(folder, case.template)({"messages": messages})
    assert encoded.bad == {}
    template = case.template or tokenizer.chat_template
    for number, turns in enumerate(rows):
        text, spans = expected(case, turns)
        assert oracle(folder).apply_chat_template(messages[number], chat_template=template, tokenize=False) == text
        ids, mask = row(encoded, number)
        assert (ids, mask) == oracle_mask(tokenizer, text, spans)
        if name in ("smollm2", "llama3.1"):  # byte-level, no normalizer: decoding gives the words back
            assert_runs(tokenizer, ids, mask, [text[a:b] for _, a, b in spans], text)


def row(encoded: EncodedRows, number: int) -> tuple[list[int], list[int]]:
    own = slice(encoded.offsets[number], encoded.offsets[number + 1])
    return encoded.columns["input_ids"][own].tolist(), encoded.columns["loss_mask"][own].tolist()


def assert_runs(tokenizer: Tokenizer, ids: list[int], mask: list[int], pieces: list[str], text: str) -> None:
    """Each run of counted tokens decodes to a content and its end token, but for what a straddling token took."""
    edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
    runs = [tokenizer.decode(ids[a:b]) for a, b in pairwise(edges) if mask[a]]
    words = [content + end for content, end in zip(pieces[::2], pieces[1::2], strict=True)]
    assert tokenizer.decode(ids) == text
    assert len(runs) == len(words)
    for found, wanted in zip(runs, words, strict=True):
        assert wanted.endswith(found)
        assert wanted[: len(wanted) - len(found)].strip() == ""  # white space that began before the content


@pytest.mark.parametrize("name", ["smollm2", "qwen2.5", "llama3.1"])
def test_real_conversations_are_rendered_as_transformers_does_and_masked(shared_data: SharedData, name: str) -> None:
    folder = shared_data("tokenizers") / name
    rows = json.loads((shared_data("sft") / "llama-factory" / "glaive_toolcall_en_demo.json").read_text())[:120]
    speakers = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    chats = [
        [{"role": speakers[one["from"]], "content": one["value"]} for one in entry["conversations"]] for entry in rows
    ]
    shared = ChatFormat(messages_field="conversations").encoder(load(folder), EncoderOptions())
    encoded = shared({"conversations": [entry["conversations"] for entry in rows]})
    assert encoded.bad == {}
    same = encoder(folder, None)({"messages": chats})
    assert all(np.array_equal(encoded.columns[key], same.columns[key]) for key in same.columns)
    for number, chat in enumerate(chats):
        ids, mask = row(encoded, number)
        text = oracle(folder).apply_chat_template(chat, tokenize=False, chat_template=load(folder).chat_template)
        assert ids == oracle(folder).encode(text, add_special_tokens=False)
        edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
        runs = [load(folder).decode(ids[a:b]) for a, b in pairwise(edges) if mask[a]]
        end = "<|eot_id|>" if name == "llama3.1" else "<|im_end|>"
        said = [one["content"] for one in chat if one["role"] == "assistant"]
        assert runs == [(words.strip() if name == "llama3.1" else words) + end for words in said]


def test_calls_of_tools_count_with_the_template_of_qwen(shared_data: SharedData) -> None:
    tokenizer = load(shared_data("tokenizers") / "qwen2.5")
    call = {"type": "function", "function": {"name": "wind", "arguments": {"at": "sea", "n": 3}}}
    chat = [
        {"role": "user", "content": "Wind?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "ponente"},
        {"role": "assistant", "content": "A west wind."},
    ]
    ids, mask = row(encoder(shared_data("tokenizers") / "qwen2.5", None)({"messages": [chat]}), 0)
    edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
    assert [tokenizer.decode(ids[a:b]) for a, b in pairwise(edges) if mask[a]] == [
        '<tool_call>\n{"name": "wind", "arguments": {"at": "sea", "n": 3}}\n</tool_call><|im_end|>',
        "A west wind.<|im_end|>",
    ]
