"""Conversations: rendered by a chat template and tokenized as one text; the loss counts what the assistant says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ponente.config import execution
from ponente.config.errors import UserError
from ponente.tokens.files import read_text
from ponente.tokens.formats.format import INPUT_IDS, LOSS_MASK, Encoder, EncoderOptions, TokenFormat
from ponente.tokens.tokenizer import Tokenizer


@TokenFormat.register_subclass("chat")
@dataclass(frozen=True, kw_only=True)
class ChatFormat(TokenFormat):
    """A field of messages, `{"role", "content"}` or ShareGPT's `{"from", "value"}`.

    `chat_template` is the template, or a path or URL of one; by default the data config's, then the tokenizer's.
    `system_prompt` is the field of a row that holds it (one word, as in Levanter), or the prompt itself. So is
    `chat_template_kwargs`: what the template sees, or the name of the field that holds it.
    """

    messages_field: str = "messages"
    chat_template: str | None = None
    system_prompt: str | None = None
    chat_template_kwargs: dict[str, Any] | str = field(default_factory=dict)
    pack: bool | int = execution(True)  # the loader's; no token depends on it
    mask_user_turns: bool = True

    @property
    def system_prompt_field(self) -> str | None:
        """The field of a row that holds its system prompt."""
        return self.system_prompt if self.system_prompt is not None and self.system_prompt.isidentifier() else None

    @property
    def kwargs_field(self) -> str | None:
        """The field of a row that holds what its template sees."""
        return self.chat_template_kwargs if isinstance(self.chat_template_kwargs, str) else None

    def fields(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {self.messages_field: list[dict[str, Any]]}
        if self.system_prompt_field is not None:
            wanted[self.system_prompt_field] = str | None
        if self.kwargs_field is not None:
            wanted[self.kwargs_field] = dict[str, Any] | None
        return wanted

    def columns(self) -> tuple[str, ...]:
        return (INPUT_IDS, LOSS_MASK)

    def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
        from ponente.tokens.formats.conversations import ChatEncoder

        return ChatEncoder(self, tokenizer, self.template_text(tokenizer, options))

    def identity(self, tokenizer: Tokenizer, options: EncoderOptions) -> dict[str, Any]:
        template = self.template_text(tokenizer, options)
        return {
            "type": "chat",
            "messages_field": self.messages_field,
            "chat_template": template,
            "chat_template_kwargs": self.chat_template_kwargs,
            "named_tokens": {role: token for role, token in sorted(tokenizer.named_tokens.items()) if role in template},
            "system_prompt": self.system_prompt,
            "mask_user_turns": self.mask_user_turns,
        }

    def variables(self, tokenizer: Tokenizer) -> Mapping[str, Any]:
        """What the template sees in every conversation."""
        own = {} if isinstance(self.chat_template_kwargs, str) else self.chat_template_kwargs
        return {**tokenizer.named_tokens, **own}

    def template_text(self, tokenizer: Tokenizer, options: EncoderOptions) -> str:
        """The source of the template in force; UserError where there is none."""
        given = self.chat_template or options.chat_template
        if given is None:
            if tokenizer.chat_template is None:
                raise UserError(
                    f"found format: chat and no chat template (the tokenizer {tokenizer.name} came without one); "
                    "needed one; set data.chat_template to a template, or to the path of a .jinja file"
                )
            return tokenizer.chat_template
        if "{" in given:
            return given
        try:
            return read_text(given)
        except (OSError, ValueError) as error:
            raise UserError(
                f"found chat_template: {given!r}, which is no Jinja (it has no brace) and no file that can be read "
                f"({type(error).__name__}); needed a template, or the path or URL of one; check the path"
            ) from error
