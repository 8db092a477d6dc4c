"""What one token cache is to be of, and the caches that a data config asks for."""

from dataclasses import dataclass, field

from ponente.config.errors import UserError
from ponente.store.sources.source import SPLITS, SourceConfig
from ponente.store.token_cache.ledger import read_ledger
from ponente.tokens.config import DataConfig
from ponente.tokens.formats.format import EncoderOptions, TokenFormat

SEGMENT_TOKENS = 1 << 23  # a reader may start, and a killed build go on, after so many


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """What one cache is to be of, and where."""

    path: str
    name: str  # for people
    source: SourceConfig
    split: str
    row_format: TokenFormat
    tokenizer: str
    vocab_size: int | None = None
    options: EncoderOptions = field(default_factory=EncoderOptions)
    max_bad_records: int = 0
    segment_tokens: int = SEGMENT_TOKENS


def cache_specs(data: DataConfig) -> list[CacheSpec]:
    """The caches of a data config: each split of each component."""
    data.check()
    return [
        CacheSpec(
            path=data.cache_path(name, split),
            name=f"{name}/{split}",
            source=component.source,
            split=split,
            row_format=component.format,
            tokenizer=data.tokenizer,
            vocab_size=data.vocab_size,
            options=data.options(),
            max_bad_records=data.max_bad_records,
        )
        for name, component in data.components.items()
        for split in _splits(data, name)
    ]


def _splits(data: DataConfig, name: str) -> list[str]:
    """The splits of a component; where its source cannot say any more, those whose caches are finished."""
    try:
        return data.components[name].source.splits()
    except UserError:
        finished = [split for split in SPLITS if read_ledger(data.cache_path(name, split)) is not None]
        if not finished:
            raise
        return finished
