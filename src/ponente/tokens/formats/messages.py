"""Conversations as rows hold them, in one form: a list of messages with a role and the content as text.

In: `{"role", "content", …}` as OpenAI has it, `{"from", "value"}` as ShareGPT has it, content as text or as text parts.
Out: the messages that a chat template sees. What is wrong with a conversation is told as ConversationError.
"""

from typing import Any

ASSISTANT = "assistant"
REASONING = ("reasoning_content", "thinking", "reasoning")  # the first is the one that templates read

_SHAREGPT = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "function_call": ASSISTANT,  # the call as text: nothing is lost, whatever the template knows of tools
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function": "tool",
}


class ConversationError(ValueError):
    """A conversation that cannot be rendered: what was found, what was needed."""


def read_conversation(value: Any, system_prompt: str | None = None) -> list[dict[str, Any]]:
    """The messages of one row; `system_prompt` goes before them unless they begin with one of their own."""
    if not isinstance(value, list | tuple) or not value:
        found = "no messages" if value in (None, [], ()) else f"{type(value).__name__} in place of messages"
        raise ConversationError(f"found {found}; needed a list of messages with role and content; mend the row")
    messages = [_message(number, one) for number, one in enumerate(value)]
    if system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def _message(number: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConversationError(
            f"found {type(value).__name__} as message {number}; needed an object with role and content; mend the row"
        )
    message = {key: item for key, item in value.items() if item is not None}
    if "role" not in message and "from" in message:
        speaker = message.pop("from")
        role = _SHAREGPT.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            known = ", ".join(sorted(_SHAREGPT))
            raise ConversationError(f"found message {number} from {speaker!r}; needed one of {known}; mend the row")
        message = {"role": role, "content": message.pop("value", None), **message}
    if not isinstance(message.get("role"), str):
        raise ConversationError(f"found message {number} without a role; needed user, assistant, …; mend the row")
    message["content"] = _text(number, message.get("content"), bool(message.get("tool_calls")))
    reasoning = next((message[key] for key in REASONING if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, REASONING[0]: reasoning}


def _text(number: int, content: Any, has_calls: bool) -> str | None:
    if isinstance(content, str):
        return content
    if content is None and has_calls:
        return None
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return "".join(part if isinstance(part, str) else part["text"] for part in content)
    found = "no content" if content is None else f"content that is {type(content).__name__}"
    if isinstance(content, list):
        kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in content}
        found = f"content with parts of type {', '.join(sorted(kinds))}"
    raise ConversationError(f"found message {number} with {found}; needed text; mend the row")


def _is_text_part(part: Any) -> bool:
    if isinstance(part, str):
        return True
    return isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
