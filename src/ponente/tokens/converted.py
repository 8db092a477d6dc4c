"""tokenizer.json of a folder that has only a sentencepiece tokenizer.model, made by transformers.

What transformers makes is compared with sentencepiece itself, and mended where it can be: of Llama 2's model it loses
the spaces at the start and the order of the merges.
"""

import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from ponente.config.errors import UserError

_SAMPLES = ("Hello world", " Hello", "a  b", "\nfoo", "naïve café — 東京 🙂", "x = [1, 2];\n\n\treturn 'y'   # z")
_SPACES = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def converted(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with a tokenizer.json among them; UserError where it cannot be made, or the ids would change."""
    with tempfile.TemporaryDirectory() as folder:
        for file, data in files.items():
            Path(folder, file).write_bytes(data)
        truth = _sentencepiece(name).SentencePieceProcessor(model_file=str(Path(folder, "tokenizer.model")))
        expected = [truth.encode(text) for text in _SAMPLES]
        for candidate in _candidates(folder, truth):
            library = tokenizers.Tokenizer.from_str(candidate)
            if [library.encode(sample, add_special_tokens=False).ids for sample in _SAMPLES] == expected:
                return {**files, "tokenizer.json": candidate.encode()}
    raise UserError(
        f"found {name} with a tokenizer.model only, which transformers {transformers.__version__} turns into a "
        "tokenizer with other ids than sentencepiece gives; needed a tokenizer.json with the right ones; put the "
        "tokenizer.json that the model's authors publish into the folder"
    )


def _candidates(folder: str, truth: Any) -> Iterator[str]:
    """What transformers makes of the folder, and the same with sentencepiece's own spaces and order of merges."""
    scores = {truth.id_to_piece(number): truth.get_score(number) for number in range(truth.get_piece_size())}
    for loader in (transformers.AutoTokenizer, transformers.LlamaTokenizer):
        try:
            loaded: Any = loader.from_pretrained(folder, trust_remote_code=False)
            text = str(loaded.backend_tokenizer.to_str())
        except (ValueError, OSError, ImportError, AttributeError, KeyError, TypeError):
            continue
        yield text
        made = json.loads(text)
        if made["model"]["type"] == "BPE":
            merges = sorted(made["model"]["merges"], key=lambda pair: -scores.get("".join(pair), 0.0))
            model = {**made["model"], "merges": merges}
            yield json.dumps({**made, "model": model, "normalizer": _SPACES, "pre_tokenizer": None})


def _sentencepiece(name: str) -> Any:
    try:
        return importlib.import_module("sentencepiece")  # no dependency of ours: few folders need it
    except ImportError as error:
        raise UserError(
            f"found {name} with a tokenizer.model only, and no sentencepiece to read it with; needed a tokenizer.json; "
            "put the one that the model's authors publish into the folder, or: pip install sentencepiece protobuf"
        ) from error
