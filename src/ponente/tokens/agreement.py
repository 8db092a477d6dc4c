"""Whether a cache is what the config asks for; if not, what differs and what can be done about it."""

import logging
from collections.abc import Mapping
from typing import Any

from ponente.config.errors import UserError
from ponente.store.sources.fingerprints import changes, check_fingerprints
from ponente.store.sources.source import SourceConfig
from ponente.store.sources.url import UrlSourceConfig
from ponente.store.token_cache.ledger import CacheError, CacheLedger, CachePlan, TokenizerRecord

_NOTHING = "nothing"

logger = logging.getLogger(__name__)


def check_agreement(
    cache: str,
    stored: CachePlan | CacheLedger,
    tokenizer: TokenizerRecord,
    row_format: Mapping[str, Any],
    source_identity: Mapping[str, Any],
    source_changes: list[str],
) -> None:
    """Raises a CacheError that names every difference between a cache and what the config asks for."""
    found = _tokenizer_changes(stored.tokenizer, tokenizer)
    found += _changes("format", stored.row_format, row_format)
    found += _changes("source", stored.source_identity, source_identity)
    found += [f"sources: {change}" for change in source_changes]
    if found:
        state = "a finished cache" if isinstance(stored, CacheLedger) else "an unfinished cache"
        listed = "\n".join(f"  - {change}" for change in found)
        raise CacheError(
            f"found {cache}, {state} of something else than the config asks for:\n{listed}\n"
            f"It is neither used nor changed. Either put the config (or the sources) back to what the cache is of, or "
            f"build a new one: set data.cache_dir to another folder, or remove {cache}."
        )


def source_changes(
    stored: CachePlan | CacheLedger, source: SourceConfig, split: str, source_config: Mapping[str, Any]
) -> list[str]:
    """What happened to the sources since, one sentence each.

    A finished cache outlives its sources: where they cannot be read any more, and the config names the same ones, they
    are taken for unchanged, with a warning.
    """
    try:
        if isinstance(source, UrlSourceConfig):
            return check_fingerprints(stored.sources, [file.path for file in source.fingerprinted(split)])
        return changes(stored.sources, source.fingerprints(split))
    except (UserError, OSError) as error:
        if isinstance(stored, CachePlan):
            raise
        if stored.source_config != source_config:
            return [f"the cache is of {stored.source_config}, the config names {source_config}, unreadable: {error}"]
        logger.warning("not all sources of the cache can be read any more; those were not compared: %s", error)
        if not isinstance(source, UrlSourceConfig):
            return []
        return check_fingerprints(stored.sources, [file.path for file in stored.sources])  # what is left of them


def _tokenizer_changes(stored: TokenizerRecord, now: TokenizerRecord) -> list[str]:
    if stored.fingerprint == now.fingerprint:
        return []
    return [
        f"tokenizer: the cache has {stored.name} ({stored.vocab_size:,} ids, fingerprint {stored.fingerprint[:12]}), "
        f"the config {now.name} ({now.vocab_size:,} ids, fingerprint {now.fingerprint[:12]})"
    ]


def _changes(section: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{section}.{key}: the cache has {_shown(stored, key)}, the config {_shown(now, key)}"
        for key in sorted(stored.keys() | now.keys())
        if stored.get(key, _NOTHING) != now.get(key, _NOTHING)
    ]


def _shown(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        return _NOTHING
    text = repr(record[key])
    return text if len(text) <= 120 else f"{text[:120]}…"
