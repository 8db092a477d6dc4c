"""Our cache build of a config, in a process of its own; the build is timed, with its workers' start and loading.

In:   a YAML config, as `ponente cache-dataset --config_path` takes it.
Out:  a line of JSON: seconds of build_cache, documents and tokens of the cache.
"""

import json
import sys
import time

start = time.perf_counter()

from ponente.config.load import load_config  # noqa: E402
from ponente.tokens.build import build_cache  # noqa: E402
from ponente.tokens.config import CacheDatasetConfig  # noqa: E402
from ponente.tokens.spec import cache_specs  # noqa: E402

import_seconds = time.perf_counter() - start


def main() -> None:
    (spec,) = cache_specs(load_config(CacheDatasetConfig, sys.argv[1]).config.data)
    start = time.perf_counter()
    ledger = build_cache(spec)
    seconds = time.perf_counter() - start
    figures = {
        "seconds": seconds,
        "says": f"imports took {import_seconds:.1f} s more",
        "documents": ledger.rows,
        "tokens": ledger.tokens,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
