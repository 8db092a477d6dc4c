"""`map_shards` over so many shards that do nothing, by two workers; prints its seconds. Run by ../cluster.py."""

import sys
import time

from ponente.cluster import map_shards


def nothing(shard: int) -> int:
    return shard


if __name__ == "__main__":
    began = time.perf_counter()
    map_shards(nothing, range(int(sys.argv[2])), state_path=sys.argv[1], workers=2)
    print(time.perf_counter() - began)
