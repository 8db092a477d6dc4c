"""What a token cache says of itself.

`plan.json` comes first: what the cache is to be of (tokenizer, format, sources, units). `ledger.json` comes when every
segment is there: the same, and all segments with their rows and tokens. `finished.json`, the marker, comes last and
carries the ledger's digest. A cache without a marker is unfinished, whatever else it has.
"""

import hashlib
from typing import Any

import msgspec

from ponente.config.errors import UserError
from ponente.store.formats import FormatError, decode_record
from ponente.store.paths import join
from ponente.store.sources.source import Fingerprint
from ponente.store.volume import volume_of

FORMAT = 1
PLAN, LEDGER, MARKER, SEGMENTS, QUARANTINE = (
    "plan.json",
    "ledger.json",
    "finished.json",
    "segments",
    "quarantine.jsonl",
)


class CacheError(UserError, ValueError):
    """A token cache that cannot be used as it is; says why and what to do."""


class TokenizerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokenizer made the ids."""

    name: str
    fingerprint: str
    vocab_size: int


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache is of. Two caches of one plan hold the same bytes."""

    format: int = FORMAT
    tokenizer: TokenizerRecord
    row_format: dict[str, Any]  # what the tokens depend on besides rows and tokenizer
    columns: dict[str, str]  # name -> dtype; `input_ids` first
    sources: list[Fingerprint]
    source_identity: dict[str, Any]  # how their rows are taken
    source_config: dict[str, Any]  # as the user wrote it; compared where the files cannot be read any more
    units: list[dict[str, Any]]
    segment_tokens: int


class SegmentRecord(msgspec.Struct, frozen=True):
    """One segment: the folder's name, its rows and its tokens."""

    name: str
    rows: int
    tokens: int


class CacheLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A finished cache: what it is of and where its rows lie, in order."""

    format: int = FORMAT
    tokenizer: TokenizerRecord
    row_format: dict[str, Any]
    columns: dict[str, str]
    rows: int
    tokens: int
    empty_rows: int  # rows of the source without a token, left out
    bad_rows: int  # rows that could not be read or encoded: in quarantine.jsonl
    sources: list[Fingerprint]
    source_identity: dict[str, Any]
    source_config: dict[str, Any]
    segments: list[SegmentRecord]


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    ledger_sha256: str


def _encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def write_plan(cache: str, plan: CachePlan) -> CachePlan:
    """Stores the plan of a new cache, unless another process was first; returns the one in force."""
    if volume_of(cache).create(join(cache, PLAN), _encode(plan)):
        return plan
    stored = read_plan(cache)
    assert stored is not None
    return stored


def read_plan(cache: str) -> CachePlan | None:
    """The plan of a cache that was begun, or None."""
    path = join(cache, PLAN)
    try:
        data = volume_of(cache).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_record(path, data, msgspec.json.Decoder(CachePlan).decode, FORMAT)


def write_ledger(cache: str, ledger: CacheLedger) -> None:
    """Finishes a cache: the ledger, then the marker."""
    volume, data = volume_of(cache), _encode(ledger)
    volume.replace(join(cache, LEDGER), data)
    marker = _Marker(ledger_sha256=hashlib.sha256(data).hexdigest())
    volume.create(join(cache, MARKER), _encode(marker))


def read_ledger(cache: str) -> CacheLedger | None:
    """The ledger of a finished cache; None where the cache is not finished.

    Raises:
        FormatError: the cache is finished but its ledger is damaged, or of a newer version.
    """
    volume, path = volume_of(cache), join(cache, MARKER)
    try:
        data = volume.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    marker = decode_record(path, data, msgspec.json.Decoder(_Marker).decode, FORMAT)
    path = join(cache, LEDGER)
    try:
        data = volume.read(path)
    except FileNotFoundError as error:
        raise FormatError(f"found {cache} finished but without its {LEDGER}; restore it, or remove {cache}") from error
    if hashlib.sha256(data).hexdigest() != marker.ledger_sha256:
        raise FormatError(
            f"found {path} changed since it was written (its digest is not the one in {MARKER}); "
            f"restore it from a copy, or remove {cache} and build it again"
        )
    return decode_record(path, data, msgspec.json.Decoder(CacheLedger).decode, FORMAT)
