"""Chat templates: Jinja in a sandbox, with what the templates of the hub expect.

In: a template's source and messages. Out: the text of a conversation, and the spans of its `{% generation %}` blocks.
The clock is refused, so that tokens never depend on the day they were made.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ponente.config.errors import UserError

Messages = Sequence[Mapping[str, Any]]

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_PRIVATE_USE = range(0xF0000, 0x10FFFE)


class RenderError(ValueError):
    """A conversation that the template does not render: its own message, or what went wrong in it."""


class ClockError(Exception):
    """The template asks what day it is."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: puts marks around what it holds while `environment.marks` is set."""

    tags = {"generation"}

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        environment.extend(marks=None)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Macro) -> str:
        text, marks = str(caller()), getattr(self.environment, "marks", None)
        return text if marks is None else f"{marks[0]}{text}{marks[1]}"


class ChatTemplate:
    """A compiled template.

    Args:
        name: whose template it is, for errors.
        variables: what it sees besides messages: `bos_token`, `eos_token`, and the user's own.
    """

    def __init__(self, source: str, *, name: str, variables: Mapping[str, Any]) -> None:
        self.name = name
        self.marks_generation = _GENERATION.search(source) is not None
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        self._environment.filters["tojson"] = _tojson
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime_now
        self._variables = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        try:
            self._compiled = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"found a chat template of {name} that is no Jinja: line {error.lineno}: {error.message}; needed one "
                "that compiles; mend it, or set data.chat_template to another"
            ) from error

    def render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        """The text of a conversation; RenderError where the template refuses it."""
        try:
            return self._compiled.render({**self._variables, **variables, "messages": messages})
        except ClockError:
            raise UserError(
                f"found that the chat template of {self.name} asks for today's date (strftime_now), so that the same "
                "data would give other tokens tomorrow; needed a fixed one; set it in chat_template_kwargs under the "
                "name that the template reads, such as {date_string: 26 Jul 2024}, or write it into the template"
            ) from None
        except jinja2.TemplateError as error:
            raise RenderError(f"found a conversation that the chat template refuses: {error.message}") from error
        except Exception as error:
            raise RenderError(
                f"found a conversation on which the chat template fails: {type(error).__name__}: {error}"
            ) from error

    def generations(self, messages: Messages, variables: Mapping[str, Any], text: str) -> list[tuple[int, int]] | None:
        """Where in `text`, the rendering of these messages, its generation blocks lie; None if it changes them."""
        opening, closing = absent_characters(text, 2)
        self._environment.marks = (opening, closing)  # type: ignore[attr-defined]
        try:
            marked = self.render(messages, variables)
        finally:
            self._environment.marks = None  # type: ignore[attr-defined]
        if marked.replace(opening, "").replace(closing, "") != text:
            return None
        spans, starts, at = [], [], 0
        for piece in re.split(f"([{opening}{closing}])", marked):
            if piece == opening:
                starts.append(at)
            elif piece == closing:
                spans.append((starts.pop(), at))
            else:
                at += len(piece)
        return sorted(spans)


def absent_characters(text: str, count: int) -> list[str]:
    """Private-use characters that are not in `text`."""
    return _first(count, (letter for letter in map(chr, _PRIVATE_USE) if letter not in text))


def _first(count: int, letters: Iterable[str]) -> list[str]:
    return [letter for letter, _ in zip(letters, range(count), strict=False)]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    raise ClockError
