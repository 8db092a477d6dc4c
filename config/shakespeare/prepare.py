"""Makes what lies beside it: Shakespeare's plays split as nanoGPT does (the last tenth is for validation), and a
tokenizer of their characters.

Run:   python config/shakespeare/prepare.py      # once, from the root; its results are committed
"""

import gzip
import shutil
from pathlib import Path

from ponente.tokens.characters import character_tokenizer

HERE = Path(__file__).parent
TEXT = HERE.parents[1] / "experiments" / "tutorials" / "shakespeare.txt"


def main() -> None:
    text = TEXT.read_text()
    border = int(len(text) * 0.9)
    for name, part in (("train", text[:border]), ("validation", text[border:])):
        (HERE / f"{name}.txt.gz").write_bytes(gzip.compress(part.encode(), 9, mtime=0))
    shutil.rmtree(HERE / "tokenizer", ignore_errors=True)
    character_tokenizer([text], str(HERE / "tokenizer"))


if __name__ == "__main__":
    main()
