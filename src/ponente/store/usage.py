"""How much lies below a place, on a disk or in a bucket, and when it was last written."""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator

import fsspec

from ponente.store.paths import protocol_of


def size_of(path: str) -> int:
    """The bytes of all files at or below a path."""
    return sum(size for size, _ in _files(path))


def last_written(path: str) -> float | None:
    """When the newest file at or below a path was written; None where there is none."""
    return max((written for _, written in _files(path)), default=None)


def last_changed(path: str) -> float | None:
    """When anything at or below a path last came, went or was written; on a disk by the clock that nobody can set."""
    if protocol_of(path) != "file":
        return last_written(path)
    places = [path, *(os.path.join(root, name) for root, folders, names in os.walk(path) for name in folders + names)]
    times = []
    for place in places:
        with contextlib.suppress(FileNotFoundError):  # it went in this moment
            times.append(os.lstat(place).st_ctime)
    return max(times, default=None)


def _files(path: str) -> Iterator[tuple[int, float]]:
    """Size and time of each file at or below a path."""
    if protocol_of(path) == "file":
        found = [path] if os.path.isfile(path) else []
        found += [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]
        for file in found:
            with contextlib.suppress(FileNotFoundError):  # it went in this moment
                stat = os.lstat(file)
                yield stat.st_size, stat.st_mtime
        return
    filesystem, inner = fsspec.core.url_to_fs(path)
    for one in filesystem.find(inner, detail=True).values():
        written = one.get("LastModified") or one.get("mtime") or one.get("updated")
        yield int(one["size"] or 0), written.timestamp() if isinstance(written, datetime.datetime) else time.time()
