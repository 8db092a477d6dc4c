"""Which characters of a rendered conversation the assistant wrote, for templates that do not say it.

In: a template, messages, and their rendering. Out: spans of the assistant's content and of the end token after it. They
are found in the whole rendering, by rendering again with a private-use character in place of the assistant's words, so
that a template that changes earlier turns when later ones come is read right.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponente.tokens.formats.messages import ASSISTANT, REASONING
from ponente.tokens.formats.template import ChatTemplate, Messages, RenderError, absent_characters

_SHOWN = 2000


class MaskError(ValueError):
    """The assistant's words cannot be found in the rendering."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters that count: a token does that begins in [lead, end) and ends after `start`."""

    lead: int
    start: int
    end: int


class AssistantTurns:
    """Finds the assistant's turns in renderings of one template.

    Args:
        end_tokens: the special tokens, one of which must follow each turn; those that begin a turn are none of them.
    """

    def __init__(self, template: ChatTemplate, end_tokens: Iterable[str], named_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._prompt, self._lead = _prompt_and_lead(template)
        eos, bos = named_tokens.get("eos_token"), named_tokens.get("bos_token")
        ends = [token for token in end_tokens if token == eos or (token != bos and token not in self._prompt)]
        either = "|".join(re.escape(token) for token in sorted(ends, key=len, reverse=True)) or r"(?!)"
        self._end = re.compile(either)
        self._end_after_space = re.compile(rf"\s*({either})")

    def spans(self, messages: Messages, variables: Mapping[str, Any], text: str) -> list[Span]:
        """The spans that count in `text`, the rendering of these messages; MaskError where they cannot be found."""
        turns = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        if self._template.marks_generation:
            marked = self._template.generations(messages, variables, text)
            if marked is None:
                raise self._error("a {% generation %} block whose text the template changes after it", text, "")
            spans = [Span(a, a, b) for a, b in marked]
        else:
            spans = self._derived(messages, variables, text, turns)
        if not spans and any(str(messages[turn]["content"] or "").strip() for turn in turns):
            raise self._error("none of what the assistant says", text, "in the rendering")
        return spans

    def check(self, text: str, spans: Sequence[Span]) -> None:
        """MaskError where turns of plain words end with different tokens: then some of these begin the next turn."""
        ends = sorted({text[span.start : span.end] for span in spans[1::2]})
        if not self._template.marks_generation and len(ends) > 1:
            raise self._error(f"turns that end with different tokens ({', '.join(ends)})", text, "")

    def _derived(self, messages: Messages, variables: Mapping[str, Any], text: str, turns: Sequence[int]) -> list[Span]:
        if len(turns) > 1 and all(_is_plain(messages[turn]) for turn in turns):
            together = self._together(messages, variables, text, turns)
            if together is not None:
                return [span for a, b in together for span in self._with_end(a, b, text)]
        return [span for turn in turns for span in self._turn(messages, variables, text, turn)]

    def _together(
        self, messages: Messages, variables: Mapping[str, Any], text: str, turns: Sequence[int]
    ) -> list[tuple[int, int]] | None:
        """The contents of all turns from one more rendering, where each stands in `text` as it is, or trimmed."""
        letters = absent_characters(text, len(turns))
        changed = list(messages)
        for turn, letter in zip(turns, letters, strict=True):
            changed[turn] = {**messages[turn], "content": letter}
        try:
            rendering = self._template.render(changed, variables)
        except RenderError:
            return None
        either = re.compile(f"[{''.join(letters)}]")
        if either.findall(rendering) != letters:  # left out, repeated, or in another order
            return None
        pieces = either.split(rendering)
        if not text.startswith(pieces[0]):
            return None
        found, at = [], len(pieces[0])
        for number, turn in enumerate(turns):
            content, piece = messages[turn]["content"], pieces[number + 1]
            fitting = [
                at + len(words)
                for words in dict.fromkeys((content, content.strip(), content.lstrip(), content.rstrip()))
                if text.startswith(words, at) and text.startswith(piece, at + len(words))
            ]
            if len(fitting) != 1:
                return None
            found.append((at, fitting[0]))
            at = fitting[0] + len(piece)
        return found if at == len(text) else None

    def _turn(self, messages: Messages, variables: Mapping[str, Any], text: str, turn: int) -> list[Span]:
        """The spans of one turn, from a rendering with only its words replaced."""
        (letter,) = absent_characters(text, 1)
        changed = [*messages[:turn], _replaced(messages[turn], letter), *messages[turn + 1 :]]
        try:
            rendering = self._template.render(changed, variables)
        except RenderError as error:
            raise self._error(f"a template that fails on other words of message {turn} ({error})", text, "") from error
        first, last = rendering.find(letter), rendering.rfind(letter)
        if first < 0:
            return []  # the template leaves this turn out
        plain = _is_plain(messages[turn])
        if plain and first != last:
            raise self._error(f"the content of message {turn} repeated", text, "")
        before, after = rendering[:first], rendering[last + 1 :]
        start = _common_prefix(before, text)
        end = len(text) - _common_suffix(after, text[start:])
        if not plain:
            return [self._whole_turn(turn, text, start, end)]
        content = messages[turn]["content"]
        if start < len(before) or len(text) - end < len(after):
            start = self._rewritten(turn, content, text, start, end)
        return self._with_end(start, end, text)

    def _rewritten(self, turn: int, content: str, text: str, start: int, end: int) -> int:
        """The start of content around which the template writes other text when the content is other text."""
        words = "".join(text[start:end].split())
        if words not in "".join(content.split()):
            raise self._error(f"a template that writes {text[start:end][:200]!r} for message {turn}", text, "")
        at = content.find(text[start:end])
        opening = content[:at].lstrip() if at > 0 else ""  # such as "<think>", which the template writes itself
        return start - len(opening) if opening and text.endswith(opening, 0, start) else start

    def _with_end(self, start: int, end: int, text: str) -> list[Span]:
        follows = self._end_after_space.match(text, end)
        if follows is None:
            raise self._error(
                f"no end token after what the assistant says ({text[start:end][-200:]!r})", text,
                f"but {text[end : end + 40]!r}",
            )  # fmt: skip
        closing = Span(end, follows.start(1), follows.end(1))
        if start == end:
            return [closing]
        lead = start - len(self._lead) if text.endswith(self._lead, 0, start) else start
        return [Span(lead, start, end), closing]

    def _whole_turn(self, turn: int, text: str, start: int, end: int) -> Span:
        """A turn of several parts (reasoning, calls of tools): all from the generation prompt to the end token."""
        prompt = text.rfind(self._prompt, 0, start) if self._prompt else -1
        begin, follows = prompt + len(self._prompt), self._end.search(text, end)
        if prompt < 0 or follows is None or self._end.search(text, begin, start):
            raise self._error(f"no beginning or end of message {turn}, which has reasoning or calls tools,", text, "")
        return Span(begin, begin, follows.end())

    def _error(self, what: str, text: str, where: str) -> MaskError:
        return MaskError(
            f"found {what} {where}".rstrip() + f" (chat template of {self._template.name}), in this rendering:\n"
            f"{text[:_SHOWN]}\nneeded what the assistant says once, each time followed by a special token; put "
            "{% generation %}…{% endgeneration %} around what the assistant says and its end token in the template "
            "(data.chat_template), or set mask_user_turns: false to count every token"
        )


def _prompt_and_lead(template: ChatTemplate) -> tuple[str, str]:
    """What the template writes to ask for a turn, and the space that it then puts before what the assistant says.

    A model must write that space itself, so a token of it and the first word counts.
    """
    asked = [{"role": "user", "content": "Hi"}]
    letter = absent_characters("", 1)[0]
    try:
        bare = template.render(asked, {})
        prompted = template.render(asked, {"add_generation_prompt": True})
        answered = template.render([*asked, {"role": ASSISTANT, "content": letter}], {})
    except RenderError:
        return "", ""
    prompt = prompted[len(bare) :] if prompted.startswith(bare) else ""
    lead = answered[len(prompted) :].partition(letter)[0] if answered.startswith(prompted) else ""
    return prompt, lead if lead.isspace() else ""


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Whether the content is all that the assistant says in a message."""
    return not message.get("tool_calls") and not any(message.get(key) for key in REASONING)


def _replaced(message: Mapping[str, Any], letter: str) -> dict[str, Any]:
    """The message with `letter` in place of each of its words."""
    changed = {**message}
    if _is_plain(message) or message["content"]:
        changed["content"] = letter
    for key in (*REASONING, "tool_calls"):
        if message.get(key):
            changed[key] = _words_replaced(message[key], letter)
    return changed


def _words_replaced(value: Any, letter: str) -> Any:
    if isinstance(value, str):
        return letter
    if isinstance(value, list):
        return [_words_replaced(item, letter) for item in value]
    if isinstance(value, dict):  # "type" is read by templates, "id" is no word
        return {key: item if key in ("type", "id") else _words_replaced(item, letter) for key, item in value.items()}
    return value


def _common_prefix(one: str, two: str) -> int:
    if two.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == two[:middle] else (low, middle - 1)
    return low


def _common_suffix(one: str, two: str) -> int:
    if two.endswith(one):
        return len(one)
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[-middle:] == two[-middle:] else (low, middle - 1)
    return low
