"""Rows of real token ids for the training benchmark: the same for every contestant, made once a machine.

Run:  PYTHONPATH=benchmarks .venv/bin/python -m train_peers.rows   (prints the file's path; train_cpu.py also makes it)
In:   texts of corpus.py, in the vocabulary of Llama 2 (32,000 ids), one after the other with an end token behind each.
Out:  ~/.cache/ponente-data/bench/train-rows-N.npy: uint16 [rows, 257], so that inputs and targets are 256 each.
"""

import os
import sys
from pathlib import Path

import numpy as np
from corpus import PREPARED, note, prepared_corpus, read_texts, shared_archive

RECIPE = 1  # raise it when the rows change
ROWS, LENGTH = 8192, 257
TEXT_BYTES = 12_000_000
END_OF_TEXT = 2  # of Llama 2


def prepared_rows() -> Path:
    """The file, made unless it is there."""
    target = PREPARED / f"train-rows-{RECIPE}.npy"
    if not target.is_file():
        note(f"making {target} (once)")
        private = target.with_name(f".{os.getpid()}-{target.name}")
        np.save(private, make_rows())
        private.rename(target)
    return target


def make_rows() -> np.ndarray:
    from ponente.tokens.load import load_tokenizer

    tokenizer = load_tokenizer(str(tokenizer_folder()))
    ids, offsets = tokenizer.encode_flat(read_texts(prepared_corpus("gz").shards, TEXT_BYTES))
    ended = np.insert(ids, offsets[1:], END_OF_TEXT)
    if len(ended) < ROWS * LENGTH:
        sys.exit(f"rows.py: the first {TEXT_BYTES:,} bytes of text gave {len(ended):,} ids; raise TEXT_BYTES.")
    return ended[: ROWS * LENGTH].reshape(ROWS, LENGTH).astype(np.uint16)


def tokenizer_folder() -> Path:
    return shared_archive("tokenizers") / "llama2"


if __name__ == "__main__":
    print(prepared_rows())
