"""For the tests of tokens/: tiny byte-level tokenizers, trained here, and a reader of loss masks.

Makes the sources of these tests importable, here and in worker processes.
"""

import shutil
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ponente.tokens.bpe import train_bpe
from ponente.tokens.formats.format import EncodedRows
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

SOURCES = str(Path(__file__).parent / "sources")
if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = [
    "The west wind is called ponente, and the east wind levante.",
    "Ein Wind weht übers Meer; l'été, la mer, à côté de la plage.",
    "def wind(speed: float) -> str:\n    return 'ponente' if speed > 3.5 else 'calm'\n",
    "Hello world! Hello there, you two. 1234567 8 9\n\n\n  Bye.",
] * 20


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of a few hundred ids with the special tokens of ChatML and its template."""
    folder = tmp_path_factory.mktemp("tokenizers") / "tiny"
    train_bpe(TEXTS, str(folder), vocab_size=512, special_tokens=SPECIAL, chat_template=CHATML)
    return folder


@pytest.fixture
def own_folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of `tiny_folder` to be changed."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "tokenizer"))


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Tokenizer:
    return load_tokenizer(str(tiny_folder))


@pytest.fixture(scope="session")
def counted() -> Callable[[Tokenizer, EncodedRows, int], str]:
    """Row `number` as text, with ⟦…⟧ around each run of tokens that count."""

    def show(tokenizer: Tokenizer, rows: EncodedRows, number: int) -> str:
        own = slice(rows.offsets[number], rows.offsets[number + 1])
        ids, mask = rows.columns["input_ids"][own], rows.columns["loss_mask"][own]
        edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
        runs = [(ids[a:b], mask[a]) for a, b in pairwise(edges) if a < b]
        return "".join(f"⟦{tokenizer.decode(run)}⟧" if counts else tokenizer.decode(run) for run, counts in runs)

    return show
