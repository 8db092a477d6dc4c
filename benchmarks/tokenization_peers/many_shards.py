"""Opening a cache of many segments: seconds and memory, for 10 and for 1,000 of them, each in a process of its own.

In:   a folder with a finished cache, and one to work in; or, as the measured process, --open and a cache.
Out:  a line of JSON: for each number of segments, open_seconds (with the first read) and grown_bytes.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ponente.store.token_cache.cache import open_cache
from ponente.store.token_cache.ledger import SegmentRecord, read_ledger, write_ledger
from ponente.store.token_cache.segment import segment_name


def main() -> None:
    if sys.argv[1] == "--open":
        print(json.dumps(measure(sys.argv[2])))
        return
    cache, work = Path(sys.argv[1]), Path(sys.argv[2])
    figures = {}
    for count in (10, 1000):
        many = multiplied(cache, work / f"segments-{count}", count)
        command = [sys.executable, __file__, "--open", str(many)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures[count] = json.loads(said)
        shutil.rmtree(many)
    print(json.dumps(figures))


def measure(cache: str) -> dict[str, float]:
    before, start = resident_bytes(), time.perf_counter()
    opened = open_cache(cache)
    opened.read(opened.tokens - 1, opened.tokens)
    return {"open_seconds": time.perf_counter() - start, "grown_bytes": resident_bytes() - before}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def multiplied(cache: Path, target: Path, count: int) -> Path:
    """A cache with `count` copies of the first segment."""
    ledger = read_ledger(str(cache))
    assert ledger is not None
    one = ledger.segments[0]
    for unit in range(count):
        shutil.copytree(cache / "segments" / one.name, target / "segments" / segment_name(unit, 0))
    segments = [SegmentRecord(segment_name(unit, 0), one.rows, one.tokens) for unit in range(count)]
    totals = {"rows": one.rows * count, "tokens": one.tokens * count}
    write_ledger(str(target), msgspec.structs.replace(ledger, segments=segments, **totals))
    return target


if __name__ == "__main__":
    main()
