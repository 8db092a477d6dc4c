"""Levanter's cache build of the given shards, in an environment of its own; only the build is timed.

In:   a tokenizer's folder, a folder for the cache, the shards.
Out:  a line of JSON: seconds of build_caches("train"), documents and tokens of the cache.
"""

import json
import sys
import time

start = time.perf_counter()

from levanter.data.text import DatasetComponent, LmDataConfig, UrlDatasetSourceConfig  # noqa: E402

import_seconds = time.perf_counter() - start


def main() -> None:
    tokenizer, cache_folder, *shards = sys.argv[1:]
    component = DatasetComponent(source=UrlDatasetSourceConfig(train_urls=shards))
    config = LmDataConfig(
        tokenizer=tokenizer, cache_dir=cache_folder, components={"text": component}, train_weights={"text": 1.0}
    )
    _ = config.the_tokenizer  # loaded before the clock starts
    start = time.perf_counter()
    cache = config.build_caches("train")["text"]
    seconds = time.perf_counter() - start
    figures = {
        "seconds": seconds,
        "says": f"imports took {import_seconds:.1f} s more",
        "documents": len(cache),
        "tokens": int(cache.flat_field_length("input_ids")),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
