"""The state of source files, to know later whether a cache was built from the same data.

A small file is known by the digest of all its bytes, a large one by its size and the digest of samples all through it.
Time and etag only spare the digest: a file that is equal in content is unchanged, wherever it lies now.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence

from ponente.store.sources.files import SourceFile, in_threads, state_of
from ponente.store.sources.source import Fingerprint
from ponente.store.sources.streams import open_raw, read_at

WHOLE_BYTES = 16 << 20
SAMPLES = 64
SAMPLE_BYTES = 64 << 10
_UNREACHED = (OSError, ImportError, ValueError)  # gone, not allowed, no such protocol here

logger = logging.getLogger(__name__)


def fingerprint(file: SourceFile) -> Fingerprint:
    """The state of a file, read from its bytes."""
    return Fingerprint(path=file.path, size=file.size, digest=_digest(file), modified=file.modified)


def fingerprints_of(files: Iterable[SourceFile]) -> list[Fingerprint]:
    """The state of files, in order, read a few at a time."""
    return in_threads(fingerprint, files)


def changes(stored: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> list[str]:
    """What happened to the data since, one sentence each; nothing if only its folder moved.

    Args:
        stored: the files that a cache was built from, in order.
        now: the files that are there.
    """
    if [_content(one) for one in stored] == [_content(one) for one in now]:
        return []
    before, after = {one.path: one for one in stored}, {one.path: one for one in now}
    old_contents, new_contents = {_content(one) for one in stored}, {_content(one) for one in now}
    found = []
    for path, one in before.items():
        if path in after and _content(after[path]) != _content(one):
            found.append(f"{path} changed: {_difference(one, after[path])}")
        elif path not in after and _content(one) not in new_contents:
            found.append(f"{path} was removed")
    found += [
        f"{path} was added" for path, one in after.items() if path not in before and _content(one) not in old_contents
    ]
    if not found and len(stored) == len(now):
        return ["the same files come in another order"]
    return found or [f"files are there another number of times: {len(stored)} then, {len(now)} now"]


def check_fingerprints(stored: Sequence[Fingerprint], paths: Sequence[str]) -> list[str]:
    """`changes` of files since they were stored, reading as little as it takes.

    A file of the same path, size and time is not opened. One that cannot be reached now is taken for unchanged, with a
    warning.
    """
    known = {one.path: one for one in stored}
    return changes(stored, in_threads(lambda path: _renewed(path, known), paths))


def _renewed(path: str, known: Mapping[str, Fingerprint]) -> Fingerprint:
    before = known.get(path)
    try:
        file = state_of(path)
        if before and file.modified and (before.size, before.modified) == (file.size, file.modified):
            return before
        now = fingerprint(file)
        if before and file.size > WHOLE_BYTES and _content(before) == _content(now):
            logger.warning("%s was touched since; samples of it are as they were, the whole was not compared", path)
        return now
    except _UNREACHED:
        if before is None:
            raise
        logger.warning("%s cannot be reached; whether it changed was not checked", path)
        return before


def _content(one: Fingerprint) -> tuple[int, str]:
    return one.size, one.digest


def _difference(before: Fingerprint, after: Fingerprint) -> str:
    if before.size != after.size:
        return f"{before.size} bytes then, {after.size} now"
    return "other bytes of the same size"


def _digest(file: SourceFile) -> str:
    digest = hashlib.sha256()
    with open_raw(file.path) as raw:
        if file.size <= WHOLE_BYTES:
            digest.update(read_at(raw, 0, file.size))
        else:
            digest.update(str(file.size).encode())
            for index in range(SAMPLES):
                digest.update(read_at(raw, index * (file.size - SAMPLE_BYTES) // (SAMPLES - 1), SAMPLE_BYTES))
    return digest.hexdigest()
