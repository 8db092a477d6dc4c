"""`ponente sample`: text from a saved model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ponente.generate.sampling import SamplingConfig
from ponente.generate.text import complete, stream_text
from ponente.models.saved import load_saved_model
from ponente.tokens.load import load_tokenizer


def sample(
    place: str, prompts: Sequence[str], sampling: SamplingConfig, *, tokenizer_name: str | None = None
) -> Iterator[tuple[int, str]]:
    """What a model writes behind each prompt, as pieces of text with the number of their prompt.

    A text ends with the tokenizer's end token, and with those that the model's generation_config.json names.

    Args:
        place: a checkpoint, a folder of them (the newest), a Hugging Face folder, or a hub name.
        tokenizer_name: instead of the model's own.
    """
    saved = load_saved_model(place)
    sampling = replace(sampling, stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *saved.end_ids))))
    tokenizer = load_tokenizer(tokenizer_name or saved.tokenizer, engine="tokenizers")
    if len(prompts) == 1:
        for piece in stream_text(saved.weights, tokenizer, prompts[0], sampling):
            yield 0, piece
        return
    yield from enumerate(complete(saved.weights, tokenizer, prompts, sampling))
