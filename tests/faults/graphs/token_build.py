"""Builds a token cache of many small segments: CORPUS TOKENIZER CACHE WORKERS [MAX_BAD]."""

import sys

from ponente.store.sources import UrlSourceConfig
from ponente.tokens.build import build_cache
from ponente.tokens.formats import TextFormat
from ponente.tokens.spec import CacheSpec

if __name__ == "__main__":
    corpus, tokenizer, cache, workers = sys.argv[1:5]
    spec = CacheSpec(
        path=cache,
        name="faults/train",
        source=UrlSourceConfig(train_urls=(f"{corpus}/*",)),
        split="train",
        row_format=TextFormat(),
        tokenizer=tokenizer,
        segment_tokens=20_000,
    )
    ledger = build_cache(spec, workers=int(workers))
    print(ledger.rows, ledger.tokens)
