"""Chat templates: what the hub's templates expect of Jinja, in a sandbox."""

from typing import Any

import pytest

from ponente.config.errors import UserError
from ponente.tokens.formats.template import ChatTemplate, RenderError, absent_characters

MESSAGES = [{"role": "user", "content": "<é> & 'x'"}, {"role": "assistant", "content": "ok"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, name="test", variables={"bos_token": "<s>"}).render(MESSAGES, variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for m in messages %}\n    {% if true %}\n{{ m.role }};\n    {% endif %}\n{% endfor %}",
            "user;\nassistant;\n",
        ),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<é> & \'x\'"}'),
        ("{{ messages[0].content }}{{ messages[0]['content'] }}", "<é> & 'x'<é> & 'x'"),
        ("{{ [1, {'a': 2}] | tojson(indent=1) }}", '[\n 1,\n {\n  "a": 2\n }\n]'),
        ("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}", "<s>TrueTrue"),
        ("{{ add_generation_prompt }}{{ mine }}", "False7"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{{ 'x'.startswith('x') }}{{ strftime_now is defined }}", "TrueTrue"),
    ],
)
def test_templates_find_what_they_expect(source: str, expected: str) -> None:
    assert render(source, mine=7) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ undefined_thing.field }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + none }}",
    ],
)
def test_what_the_sandbox_or_python_refuses_is_a_render_error(source: str) -> None:
    with pytest.raises(RenderError, match="the chat template"):
        render(source)


def test_the_words_of_raise_exception_are_told() -> None:
    with pytest.raises(RenderError, match="refuses: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_the_clock_is_refused_and_the_way_out_told() -> None:
    with pytest.raises(UserError, match="chat_template_kwargs"):
        render("{{ strftime_now('%Y') }}")


def test_absent_characters_are_absent() -> None:
    assert not set(absent_characters("".join(absent_characters("", 50)), 3)) & set(absent_characters("", 50))
