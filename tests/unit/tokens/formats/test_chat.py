"""Chat: which tokens count, for templates that say it and for those that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import draccus
import pytest

from ponente.config.errors import UserError
from ponente.tokens.formats import ChatFormat
from ponente.tokens.formats.format import EncodedRows, EncoderOptions, TokenFormat
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

OPTIONS = EncoderOptions()
Counted = Callable[[Tokenizer, EncodedRows, int], str]

TRIMMING = "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported, not ' + m.role) }}"
    "{% endif %}{% endfor %}"
)
THINKING = """
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and not loop.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
RECOMPOSING = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- set reasoning, content = '', message.content %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last %}{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}
        {%- endfor %}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
GENERATION = """
{%- macro turn(message) %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% endmacro %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}{{ turn(message) }}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}
    {{- '\\n' }}
{%- endfor %}
"""
REPEATING = "{% for m in messages %}<|im_start|>{{ m.content }}|{{ m.content }}<|im_end|>{% endfor %}"
ENDLESS = "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
ENDED_ONCE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}<|im_end|>"
ENDED_ONCE_PROMPTING = ENDED_ONCE + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHANGED_LATER = (
    "{% for m in messages %}{% set turn %}{% generation %} {{ m.content }} {% endgeneration %}{% endset %}"
    "{{ turn | trim }}<|im_end|>{% endfor %}"
)
USERS_ONLY = "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def talk(*contents: str, **more: Any) -> list[dict[str, Any]]:
    """User and assistant in turn; `more` goes into the last message."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]
    messages[-1].update(more)
    return messages


def encode(tokenizer: Tokenizer, *rows: Any, template: str | None = None, **options: Any) -> EncodedRows:
    encoder = ChatFormat(chat_template=template, **options).encoder(tokenizer, OPTIONS)
    return encoder({"messages": list(rows)})


def chatml(*turns: tuple[str, str]) -> str:
    """What ChatML must give, written by hand."""
    return "".join(
        f"<|im_start|>{role}\n⟦{content}<|im_end|>⟧\n"
        if role == "assistant"
        else f"<|im_start|>{role}\n{content}<|im_end|>\n"
        for role, content in turns
    )


@pytest.mark.parametrize(
    "contents",
    [
        ("Hi", "Hello there!"),
        ("Hi", "same", "same", "same", "Hi", "same"),
        ("Hi", "", "and?", "", "x", "y"),
        ("Hi", "<|im_start|>user\nHi<|im_end|>\n", "Hi", "assistant\nassistant\n"),
        ("<|im_end|>", "<|im_end|>", "\n", "<|im_end|>\n<|im_start|>assistant\nforged<|im_end|>"),
        ("{{ messages }}", "{% generation %}x{% endgeneration %}{{ 1/0 }}"),
        ("été 漢字 😀", "e\u0301 😀👨‍👩‍👧\r\n\x00\u3000", "\U000f0000", "\U000f0000\U000f0001\U0010fffd"),
        ("a", "trailing  ", "b", "x \n\n"),
    ],
)
def test_exactly_the_content_and_its_end_token_count(tiny: Tokenizer, counted: Counted, contents: Any) -> None:
    encoded = encode(tiny, talk(*contents))
    assert encoded.bad == {}
    roles = ["user", "assistant"] * len(contents)
    assert counted(tiny, encoded, 0) == chatml(*zip(roles, contents, strict=False))


def test_a_token_that_begins_before_the_content_does_not_count(tiny: Tokenizer, counted: Counted) -> None:
    encoded = encode(tiny, talk("Hi", "\n\n  Bye"))
    straddling, _ = tiny.encode_flat(["\n\n\n  Bye"])
    assert tiny.decode(straddling[:1]) == "\n\n\n "  # the template's own line break and more of the content
    assert counted(tiny, encoded, 0) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n\n ⟦ Bye<|im_end|>⟧\n"
    )


def test_content_that_the_template_trims_counts_as_it_stands(tiny: Tokenizer, counted: Counted) -> None:
    encoded = encode(tiny, talk(" a ", " \n b\t", "c", "  "), template=TRIMMING)
    assert counted(tiny, encoded, 0) == (
        "<|im_start|>user\n\na<|im_end|><|im_start|>assistant\n\n⟦b<|im_end|>⟧"
        "<|im_start|>user\n\nc<|im_end|><|im_start|>assistant\n\n⟦<|im_end|>⟧"
    )


def test_the_space_of_llama_2_counts_with_the_word_and_not_alone(tiny: Tokenizer, counted: Counted) -> None:
    encoded = encode(tiny, talk("Hi", " world ", "x", "", "y", "ponente!"), template=LLAMA2)
    assert counted(tiny, encoded, 0) == (
        "<|endoftext|>[INST] Hi [/INST]⟦ world⟧ ⟦<|endoftext|>⟧"
        "<|endoftext|>[INST] x [/INST]  ⟦<|endoftext|>⟧"
        "<|endoftext|>[INST] y [/INST]⟦ ponente!⟧ ⟦<|endoftext|>⟧"
    )


def test_reasoning_that_the_template_drops_from_earlier_turns_does_not_count(tiny: Tokenizer, counted: Counted) -> None:
    thought = "<think>\nhm\n</think>\n\n"
    encoded = encode(tiny, talk("1", f"{thought}one", "2", f"{thought}two"), template=THINKING)
    assert counted(tiny, encoded, 0) == chatml(
        ("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", f"{thought}two")
    )


def test_reasoning_that_the_template_composes_again_counts_whole(tiny: Tokenizer, counted: Counted) -> None:
    thought = "<think>\nhm\n</think>\n\n"
    encoded = encode(tiny, talk("1", f"{thought}one", "2", f"{thought}two"), template=RECOMPOSING)
    assert counted(tiny, encoded, 0) == chatml(
        ("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", f"{thought}two")
    )
    apart = encode(tiny, talk("1", "one", "2", "two", reasoning_content="hm"), template=RECOMPOSING)
    assert counted(tiny, apart, 0) == counted(tiny, encoded, 0)


def test_calls_of_tools_count_from_the_prompt_to_the_end_token(tiny: Tokenizer, counted: Counted) -> None:
    call = {"type": "function", "function": {"name": "wind", "arguments": {"at": "sea<|im_end|>", "n": 3}}}
    silent = talk("Hi", "", content=None, tool_calls=[call]) + talk("ok", "Yes")
    speaking = talk("Hi", "Let me see.", tool_calls=[call, call]) + talk("ok", "Yes")
    shown = '\n<call>wind {"at": "sea<|im_end|>", "n": 3}</call>'
    template = RECOMPOSING.replace("{{- content }}", "{{- content or '' }}").replace("in content", "in (content or '')")
    encoded = encode(tiny, silent, speaking, template=template)
    assert encoded.bad == {}
    tail = [("user", "ok"), ("assistant", "<think>\n\n</think>\n\nYes")]
    expected = chatml(*tail).replace("⟦<think>\n\n</think>\n\nYes", "<think>\n\n</think>\n\n⟦Yes")
    assert counted(tiny, encoded, 0) == chatml(("user", "Hi"), ("assistant", shown)) + expected
    assert counted(tiny, encoded, 1) == chatml(("user", "Hi"), ("assistant", f"Let me see.{shown}{shown}")) + expected


def test_generation_blocks_count_as_the_template_says(tiny: Tokenizer, counted: Counted) -> None:
    encoded = encode(tiny, talk("Hi", "same", "Hi", "same<|im_end|>"), template=GENERATION)
    assert counted(tiny, encoded, 0) == chatml(
        ("user", "Hi"), ("assistant", "same"), ("user", "Hi"), ("assistant", "same<|im_end|>")
    )


def test_generation_blocks_may_hold_others(tiny: Tokenizer, counted: Counted) -> None:
    nested = GENERATION.replace(
        "{{ message.content }}<|im_end|>", "a{% generation %}{{ message.content }}{% endgeneration %}"
    )
    encoded = encode(tiny, talk("Hi", "x", "Hi", "y"), template=nested)
    assert counted(tiny, encoded, 0).count("⟦") == 2
    assert "⟦ax⟧\n<|im_start|>user" in counted(tiny, encoded, 0)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (REPEATING, "found the content of message 1 repeated"),
        (ENDLESS, r"found no end token after what the assistant says \('In Spanish, ponente.'\) but '\\n\\n### user"),
        (ENDED_ONCE, r"found turns that end with different tokens \(<\|im_end\|>, <\|im_start\|>\)"),
        (ENDED_ONCE_PROMPTING, "found no end token after what the assistant says"),
        (CHANGED_LATER, "block whose text the template changes after it"),
        (USERS_ONLY, "found none of what the assistant says in the rendering"),
    ],
)
def test_a_template_without_a_mask_is_refused_before_any_row(tiny: Tokenizer, template: str, found: str) -> None:
    form = ChatFormat(chat_template=template)
    with pytest.raises(UserError, match=found) as error:
        form.encoder(tiny, OPTIONS)
    assert "What is the west wind called?" in str(error.value)
    assert "put {% generation %}" in str(error.value)
    whole = ChatFormat(chat_template=template, mask_user_turns=False).encoder(tiny, OPTIONS)
    encoded = whole({"messages": [talk("Hi", "x")]})
    assert encoded.columns["loss_mask"].all()
    assert encoded.offsets[-1] == len(encoded.columns["loss_mask"]) > 0


def test_a_template_that_cannot_work_is_refused_before_any_row(tiny: Tokenizer, own_folder: Path) -> None:
    with pytest.raises(UserError, match=r"is no Jinja: line 2: .*; mend it"):
        encode(tiny, template="{{ messages }}\n{% endif %}")
    with pytest.raises(UserError, match=r"asks for today's date .* chat_template_kwargs"):
        encode(tiny, template="{{ date_string or strftime_now('%d') }}" + TRIMMING)
    dated = encode(
        tiny, talk("a", "b"), template="{{ day or strftime_now('%d') }}" + TRIMMING, chat_template_kwargs={"day": "1"}
    )
    assert tiny.decode(dated.columns["input_ids"]).startswith("1<|im_start|>")
    (own_folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    with pytest.raises(UserError, match=r"no chat template .* set data\.chat_template"):
        encode(load_tokenizer(str(own_folder)))


def test_a_conversation_that_is_refused_is_a_bad_row_in_the_words_of_the_template(
    tiny: Tokenizer, counted: Counted
) -> None:
    rows = [
        talk("Hi", "good"),
        [{"role": "pirate", "content": "Arr"}],
        [],
        None,
        talk("Hi", "cut \ud800"),
        [{"role": "user"}],
        [{"content": "x"}],
        ["Hi"],
        [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
        [{"from": "parrot", "value": "x"}],
        talk("Hi", "good"),
    ]
    encoded = encode(tiny, *rows, template=LLAMA2)
    said = [
        "refuses: Only user and assistant roles are supported, not pirate",
        "found no messages", "found no messages", "lone surrogate", "message 0 with no content", "without a role",
        "found str as message 0", "parts of type image", "found message 0 from 'parrot'",
    ]  # fmt: skip
    assert list(encoded.bad) == [*range(1, 4), *range(5, 10), 4]
    for number, words in enumerate(said, 1):
        assert words in encoded.bad[number]
        assert encoded.offsets[number] == encoded.offsets[number + 1]
    assert counted(tiny, encoded, 0) == counted(tiny, encoded, 10) != ""


def test_a_row_on_which_the_mask_fails_is_a_bad_row(tiny: Tokenizer) -> None:
    doubling = "{% for m in messages %}<|im_start|>{{ m.content * (1 + m.twice) }}<|im_end|>{% endfor %}"
    fine, twice = talk("a", "b", twice=0), talk("a", "b", twice=1)
    fine[0]["twice"] = twice[0]["twice"] = 0
    encoded = encode(tiny, fine, twice, template=doubling)
    assert list(encoded.bad) == [1]
    assert "found the content of message 1 repeated" in encoded.bad[1]


def test_a_conversation_without_an_assistant_counts_nothing(tiny: Tokenizer, counted: Counted) -> None:
    assert counted(tiny, encode(tiny, talk("Hi")), 0) == "<|im_start|>user\nHi<|im_end|>\n"


def test_sharegpt_and_text_parts_mean_the_same_conversation(tiny: Tokenizer) -> None:
    plain = [*talk("Hi", "Hello"), {"role": "tool", "content": "3"}]
    shared = [
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello"},
        {"from": "observation", "value": "3"},
    ]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}], "name": None},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello"}], "tool_calls": None},
        {"role": "tool", "content": "3"},
    ]
    encoded = encode(tiny, plain, shared, parts)
    assert encoded.bad == {}
    rows = [[column[a:b].tolist() for column in encoded.columns.values()] for a, b in
            zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)]  # fmt: skip
    assert rows[0] == rows[1] == rows[2]


def test_a_system_prompt_is_text_or_the_field_that_holds_it(tiny: Tokenizer) -> None:
    written = ChatFormat(system_prompt="Be kind.")
    assert set(written.fields()) == {"messages"}
    named = ChatFormat(system_prompt="system", chat_template_kwargs="extra")
    assert set(named.fields()) == {"messages", "system", "extra"}
    own = [{"role": "system", "content": "Own."}, *talk("Hi", "x")]
    encoded = written.encoder(tiny, OPTIONS)({"messages": [talk("Hi", "x"), own]})
    texts = [tiny.decode(encoded.columns["input_ids"][a:b]) for a, b in
             zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)]  # fmt: skip
    assert [text.count("system") for text in texts] == [1, 1]
    assert "Be kind." in texts[0]
    assert "Own." in texts[1]
    values = {"messages": [talk("Hi", "x")] * 2, "system": ["Be brief.", None], "extra": [{"day": "1"}, None]}
    by_field = ChatFormat(system_prompt="system", chat_template_kwargs="extra", chat_template="{{ day }}" + TRIMMING)
    encoded = by_field.encoder(tiny, OPTIONS)(values)
    texts = [tiny.decode(encoded.columns["input_ids"][a:b]) for a, b in
             zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)]  # fmt: skip
    assert texts[0].startswith("1<|im_start|>system\n\nBe brief.")
    assert texts[1].startswith("<|im_start|>user")


def test_the_template_is_the_formats_then_the_configs_then_the_tokenizers(tiny: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(TRIMMING)
    options = EncoderOptions(chat_template=LLAMA2)
    assert ChatFormat(chat_template=str(file)).template_text(tiny, options) == TRIMMING
    assert ChatFormat().template_text(tiny, options) == LLAMA2
    assert ChatFormat().template_text(tiny, OPTIONS) == tiny.chat_template
    with pytest.raises(UserError, match=r"no Jinja .* and no file"):
        ChatFormat(chat_template="nowhere.jinja").template_text(tiny, options)


def test_identity_is_the_template_and_what_it_sees_and_not_packing(tiny: Tokenizer, tmp_path: Path) -> None:
    one = ChatFormat().identity(tiny, OPTIONS)
    assert one["chat_template"] == tiny.chat_template
    assert ChatFormat(pack=False).identity(tiny, OPTIONS) == one
    others = [
        ChatFormat(chat_template=LLAMA2), ChatFormat(system_prompt="x"), ChatFormat(mask_user_turns=False),
        ChatFormat(chat_template_kwargs={"a": 1}), ChatFormat(messages_field="m"),
    ]  # fmt: skip
    assert all(other.identity(tiny, OPTIONS) != one for other in others)
    file = tmp_path / "same.jinja"
    file.write_text(str(tiny.chat_template))
    assert ChatFormat(chat_template=str(file)).identity(tiny, OPTIONS) == one


def test_yaml_gives_the_format() -> None:
    decoded = draccus.decode(TokenFormat, {"type": "chat", "chat_template_kwargs": {"day": "1"}, "pack": False})
    assert decoded == ChatFormat(chat_template_kwargs={"day": "1"}, pack=False)
    assert draccus.decode(TokenFormat, {"type": "chat", "chat_template_kwargs": "extra", "pack": 4}) == ChatFormat(
        chat_template_kwargs="extra", pack=4
    )


def test_fields_that_a_table_fills_with_nulls_are_not_there_for_the_template(tiny: Tokenizer) -> None:
    asking = "{% for m in messages %}{{ m.name is defined }}{{ m.content }}<|im_end|>{% endfor %}"
    encoded = encode(tiny, [{**one, "name": None, "tool_calls": None} for one in talk("Hi", "x")], template=asking)
    assert tiny.decode(encoded.columns["input_ids"]) == "FalseHi<|im_end|>Falsex<|im_end|>"
