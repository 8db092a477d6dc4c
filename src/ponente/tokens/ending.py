"""A post-processor that also puts the EOS at the end: the library that encodes does it in passing.

In: the `post_processor` of a tokenizer.json. Out: the same with an EOS after each text; as it was where it is of a kind
that cannot be told so, and then whoever wants the EOS has to add it.
"""

from typing import Any


def with_end(processor: Any, token: str, number: int) -> Any:
    """`processor` with the token `token`, whose id is `number`, at the end of a single text, if it is not there yet."""
    end = {"SpecialToken": {"id": token, "type_id": 0}}
    known = {token: {"id": token, "ids": [number], "tokens": [token]}}
    match processor:
        case {"type": "TemplateProcessing", "single": [*single], "special_tokens": dict(others)}:
            if single and _token_of(single[-1]) == token:
                return processor
            return {**processor, "single": [*single, end], "special_tokens": {**others, **known}}
        case {"type": "Sequence", "processors": [*first, {"type": "TemplateProcessing"} as last]}:
            return {**processor, "processors": [*first, with_end(last, token, number)]}
        case None | {"type": "ByteLevel"}:  # which adds no id
            text, second = ({"Sequence": {"id": one, "type_id": 0}} for one in "AB")
            template = {"type": "TemplateProcessing", "single": [text, end], "pair": [text, second]}
            return _after(processor, {**template, "special_tokens": known})
    return processor


def _token_of(piece: Any) -> str | None:
    match piece:
        case {"SpecialToken": {"id": str(token)}}:
            return token
    return None


def _after(first: Any, second: dict[str, Any]) -> dict[str, Any]:
    return second if first is None else {"type": "Sequence", "processors": [first, second]}
