"""Tokenizers by name: a folder, a tokenizer.json, any fsspec URL, a hub name, or "passthrough".

In: what the user wrote. Out: a `Tokenizer` with the ids of tokenizer.json itself (transformers rebuilds some of them),
computed by the fast engine where that is exact, else by the reference, which the log says.
"""

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Literal

from ponente.config.errors import UserError
from ponente.store.tokenizer_files import TOKENIZER_FILES
from ponente.tokens.choice import fast_engine
from ponente.tokens.definition import TokenizerDefinition, define
from ponente.tokens.engine import Engine, battery, trial_by
from ponente.tokens.files import read_folder
from ponente.tokens.passthrough import PASSTHROUGH, PassthroughTokenizer
from ponente.tokens.reference import ReferenceEngine
from ponente.tokens.text_tokenizer import TextTokenizer
from ponente.tokens.tokenizer import Tokenizer

EngineName = Literal["fastokens", "tokenizers"]

logger = logging.getLogger(__name__)


def load_tokenizer(
    name: str,
    *,
    vocab_size: int | None = None,
    engine: EngineName | str | None = None,
    ends_texts: bool = False,
    on_text: Callable[[bytes], None] | None = None,
) -> Tokenizer:
    """The tokenizer called `name`.

    Args:
        name: a folder or a tokenizer.json (local, or any fsspec URL), a hub name ("gpt2", "org/name@revision"), or
            "passthrough" for data that are token ids already. What lies here goes before the hub.
        vocab_size: of "passthrough", which needs it, the ids that there are; others must not have more than so many.
        engine: "tokenizers" or "fastokens"; by default the fast one if it is exact.
        ends_texts: whether its special tokens shall end with the EOS, where it has one and can be told so.
        on_text: is told the tokenizer.json that engines read, if there is one, as soon as it is known.

    Example: `load_tokenizer("gpt2").encode_flat(["Hello world"])[0].tolist() == [15496, 995]`
    """
    if engine not in (None, "fastokens", "tokenizers"):
        raise UserError(f"found the engine {engine!r}; needed fastokens or tokenizers; leave it out to have the faster")
    if name == PASSTHROUGH:
        if vocab_size is None or vocab_size < 1:
            raise UserError(
                f"found tokenizer: passthrough with vocab_size: {vocab_size}; needed the number of ids that the data "
                "may have; set data.vocab_size"
            )
        return PassthroughTokenizer(vocab_size)
    definition = define(name, tokenizer_files(name), ends_texts=ends_texts, on_text=on_text)
    reference = ReferenceEngine(definition)
    tokenizer = TextTokenizer(definition, reference, _fast_engine(definition, reference, engine))
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"found vocab_size: {vocab_size} beside tokenizer {name}, which has {tokenizer.vocab_size} ids; needed as "
            "many or more, for a model may have ids that no text has; raise it or leave it out"
        )
    return tokenizer


def on_trial(tokenizer: Tokenizer, sample: Sequence[str]) -> Tokenizer:
    """`tokenizer` as it is sent to worker processes: each tries the fast engine on `sample` before it uses it.

    The right ids are computed here, once, so that all workers judge alike and none loads the reference unless it must.
    Texts that UTF-8 cannot hold are passed over: they are bad rows of the build.
    """
    if not isinstance(tokenizer, TextTokenizer):
        return tokenizer
    return tokenizer.on_trial([text for text in sample if _is_text(text)])


def _is_text(text: object) -> bool:
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def tokenizer_files(name: str) -> dict[str, bytes]:
    files = read_folder(name)
    if files is None:
        if "://" in name or name.startswith(("/", "./", "../", "~")) or name.endswith("tokenizer.json"):
            raise UserError(
                f"found nothing at {name}; needed a folder with a tokenizer.json; check the path, or give a hub name"
            )
        files = _hub_files(name)
    if "tokenizer.json" in files or ("vocab.json" in files and "merges.txt" in files):
        return files
    if "tokenizer.model" not in files:
        raise UserError(
            f"found {name} with {', '.join(sorted(files)) or 'no file of a tokenizer'}; needed a tokenizer.json (or "
            "vocab.json and merges.txt); give the folder that holds it"
        )
    if find_spec("transformers") is None:
        raise UserError(
            f"found {name} with a tokenizer.model only; needed a tokenizer.json; put the one that the model's authors "
            "publish into the folder, or: pip install 'ponente[hub]' sentencepiece protobuf"
        )
    from ponente.tokens.converted import converted

    return converted(name, files)


def _hub_files(name: str) -> dict[str, bytes]:
    if find_spec("huggingface_hub") is None:
        raise UserError(
            f"found no folder {name!r} here, and no huggingface_hub to ask the hub with; needed one of them; give the "
            "path or URL of a folder with a tokenizer.json, or: pip install 'ponente[hub]'"
        )
    from ponente.store.hub_files import fetch_files

    return read_folder(fetch_files(name, TOKENIZER_FILES, "its tokenizer.json")) or {}


def _fast_engine(definition: TokenizerDefinition, reference: ReferenceEngine, engine: str | None) -> Engine | None:
    if engine == "tokenizers":
        return None
    fast, reason = fast_engine(definition, trial_by(reference, battery(definition)))
    if fast is not None:
        return fast
    if engine == "fastokens":
        raise UserError(
            f"found that fastokens is not exact for {definition.name}: {reason}; needed the same ids as tokenizers "
            "gives; leave the engine out, or ask for tokenizers"
        )
    logger.warning("%s: tokenizing with %s, the slower engine: %s", definition.name, reference.name, reason)
    return None
