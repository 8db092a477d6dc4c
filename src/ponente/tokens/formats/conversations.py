"""Encodes conversations: messages to text by the template, text to ids, and the assistant's spans to a loss mask.

In: a batch of conversations. Out: `input_ids`, which are those of the rendering as one plain text, and `loss_mask`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import UserError
from ponente.tokens.formats.alignment import align
from ponente.tokens.formats.chat import ChatFormat
from ponente.tokens.formats.format import INPUT_IDS, LOSS_MASK, EncodedRows
from ponente.tokens.formats.messages import ConversationError, read_conversation
from ponente.tokens.formats.rows import encode_texts
from ponente.tokens.formats.template import ChatTemplate, RenderError
from ponente.tokens.formats.turns import AssistantTurns, MaskError, Span
from ponente.tokens.tokenizer import Offsets, Tokenizer

_TRIAL = [
    {"role": "user", "content": "What is the west wind called?"},
    {"role": "assistant", "content": "In Spanish, ponente."},
    {"role": "user", "content": "And the east wind?"},
    {"role": "assistant", "content": "Levante."},
]

logger = logging.getLogger(__name__)


class ChatEncoder:
    """An `Encoder` of conversations; a template that could never work fails when it is made."""

    def __init__(self, chat: ChatFormat, tokenizer: Tokenizer, template: str) -> None:
        self._chat, self._tokenizer = chat, tokenizer
        variables = chat.variables(tokenizer)
        self._template = ChatTemplate(template, name=tokenizer.name, variables=variables)
        special = [tokenizer.decode([number]) for number in sorted(tokenizer.special_ids)]
        self._turns = AssistantTurns(self._template, special, tokenizer.named_tokens)
        self._try()

    def __call__(self, values: Mapping[str, list[Any]]) -> EncodedRows:
        rows = values[self._chat.messages_field]
        texts, spans, bad = [""] * len(rows), [list[Span]()] * len(rows), dict[int, str]()
        for number, row in enumerate(rows):
            try:
                texts[number], spans[number] = self._render(row, self._row_values(values, number))
            except (ConversationError, RenderError, MaskError) as error:
                bad[number] = str(error)
        ids, offsets, unencodable = encode_texts(self._tokenizer, texts, add_special_tokens=False)
        for number, why in unencodable.items():
            texts[number], spans[number], bad[number] = "", [], why
        if self._chat.mask_user_turns:
            begins, ends = align(self._tokenizer, texts, ids, offsets)
            mask = _mask(begins, ends, offsets, spans)
        else:
            mask = np.ones(len(ids), np.uint8)
        return EncodedRows(columns={INPUT_IDS: ids, LOSS_MASK: mask}, offsets=offsets, bad=bad)

    def _row_values(self, values: Mapping[str, list[Any]], number: int) -> tuple[str | None, Mapping[str, Any]]:
        """The system prompt of a row, and what its template sees."""
        own = values[self._chat.kwargs_field][number] if self._chat.kwargs_field is not None else None
        prompt = self._chat.system_prompt
        if self._chat.system_prompt_field is not None:
            prompt = values[self._chat.system_prompt_field][number] or None
        return prompt, own or {}

    def _render(self, row: Any, beside: tuple[str | None, Mapping[str, Any]]) -> tuple[str, list[Span]]:
        system_prompt, variables = beside
        messages = read_conversation(row, system_prompt)
        text = self._template.render(messages, variables)
        if not self._chat.mask_user_turns:
            return text, []
        return text, self._turns.spans(messages, variables, text)

    def _try(self) -> None:
        """Renders a conversation of everyday, so that a template that gives no mask is told before the build."""
        prompt = self._chat.system_prompt if self._chat.system_prompt_field is None else None
        try:
            text, spans = self._render(_TRIAL, (prompt, {}))
            self._turns.check(text, spans)
        except MaskError as error:
            raise UserError(str(error)) from error
        except (RenderError, ConversationError) as error:  # it may want fields that only the rows have
            logger.info("the chat template of %s was not tried before the build: %s", self._tokenizer.name, error)


def _mask(begins: Offsets, ends: Offsets, offsets: Offsets, spans: Sequence[Sequence[Span]]) -> NDArray[np.uint8]:
    """1 for each token that counts: those that begin in [lead, end) of a span of their row and end after its start."""
    rows = np.repeat(np.arange(len(spans)), [len(row) for row in spans])
    if not len(rows) or not len(begins):
        return np.zeros(len(begins), np.uint8)
    lead, start, end = np.array([(span.lead, span.start, span.end) for row in spans for span in row]).T
    stride = int(max(ends.max(), end.max())) + 1  # apart, so that the tokens of all rows stand in one order
    base = np.repeat(np.arange(len(spans)), np.diff(offsets)) * stride
    token_begins, token_ends = begins + base, ends + base
    first = np.searchsorted(token_begins, lead + rows * stride)
    inside = np.searchsorted(token_begins, start + rows * stride)
    last = np.searchsorted(token_begins, end + rows * stride)
    counts = np.zeros(len(begins) + 1, np.int64)
    np.add.at(counts, inside, 1)
    np.add.at(counts, last, -1)
    mask = np.cumsum(counts[:-1]) > 0
    for one in np.flatnonzero(first < inside):  # tokens that begin in the lead
        leading = slice(first[one], inside[one])
        mask[leading] |= token_ends[leading] > start[one] + rows[one] * stride
    return mask.astype(np.uint8)
