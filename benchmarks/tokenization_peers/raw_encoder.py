"""One bare encoder on texts that are already in memory, in its first pass over them; only its calls are timed.

In:   an engine, a tokenizer.json, shards (gz) and how much of them to take; --help names the rest.
Out:  a line of JSON: seconds, documents, text_bytes, tokens; and of the first `--head` documents, the tokens and a hash
      of their ids (without special tokens), by which two engines are compared.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from corpus import read_texts

Flat = tuple[np.ndarray, np.ndarray]  # the ids of all documents, one after the other, and how many each has


def main() -> None:
    flags = parse_flags()
    texts = read_texts(flags.shards, flags.megabytes and flags.megabytes * 1_000_000)
    text_bytes = sum(len(text.encode()) for text in texts)
    if flags.suffix:
        texts = [text + flags.suffix for text in texts]
    encode, flatten = ENGINES[flags.engine](flags.tokenizer)
    seconds, tokens, head_tokens = 0.0, 0, 0
    digest = hashlib.sha256()
    for start in range(0, len(texts), flags.batch_documents):
        batch = texts[start : start + flags.batch_documents]
        clock = time.perf_counter()
        encoded = encode(batch)
        seconds += time.perf_counter() - clock
        ids, counts = flatten(encoded)
        tokens += len(ids)
        in_head = int(counts[: max(0, flags.head - start)].sum())
        head_tokens += in_head
        digest.update(ids[:in_head].astype("<u4").tobytes())
    print(
        json.dumps(
            {
                "seconds": seconds,
                "documents": len(texts),
                "text_bytes": text_bytes,
                "tokens": tokens,
                "head_tokens": head_tokens,
                "head_sha256": digest.hexdigest(),
            }
        )
    )


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("shards", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=int, help="take no more than this of the text (default: all)")
    parser.add_argument("--head", type=int, default=1_000_000_000, help="documents that are hashed (default: all)")
    parser.add_argument("--suffix", default="", help="what to append to each text")
    parser.add_argument("--batch_documents", type=int, default=500, help="of one call (default: %(default)s)")
    return parser.parse_args()


def tokenizers_engine(file: str) -> tuple[Callable[[list[str]], Any], Callable[[Any], Flat]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)

    def flatten(encodings: Any) -> Flat:
        ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return np.concatenate(ids), np.array([len(document) for document in ids])

    return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False), flatten


def fastokens_engine(file: str) -> tuple[Callable[[list[str]], Any], Callable[[Any], Flat]]:
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_file(file)

    def flatten(encoded: Any) -> Flat:
        ids, offsets = encoded
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).astype(np.int64)

    return lambda texts: tokenizer.encode_batch_flat(texts, add_special_tokens=False), flatten


ENGINES = {"tokenizers": tokenizers_engine, "fastokens": fastokens_engine}


if __name__ == "__main__":
    main()
