"""Tokenizing as a step: documents, files or a dataset in, token caches out.

The caches lie under `step / "tokens/SPLIT"`. They are built in the step's state, so that a step that was killed or
preempted goes on with the segments it had published.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ponente.cluster.context import current_step
from ponente.cluster.resources import Resources
from ponente.config import execution
from ponente.executor import ExecutorStep, Summary, this_state_path
from ponente.store.paths import basename, join
from ponente.store.sources import SourceConfig, UrlSourceConfig
from ponente.tokens.build import build_cache
from ponente.tokens.formats.format import EncoderOptions, TokenFormat
from ponente.tokens.formats.text import TextFormat
from ponente.tokens.spec import CacheSpec

TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """What a tokenizing step is of."""

    source: SourceConfig
    tokenizer: str = "gpt2"
    vocab_size: int | None = None
    format: TokenFormat = field(default_factory=TextFormat)
    enforce_eos: bool = True
    chat_template: str | None = None
    max_bad_records: int = execution(0)
    workers: int | None = execution(None)
    cache_path: str = this_state_path(TOKENS)


def tokenize(config: TokenizeConfig) -> Summary:
    """Builds the cache of each split of the source."""
    step = current_step()
    assert step is not None, "tokenize runs as a step; outside one, call tokens.build.build_cache"
    counts = {}
    for split in config.source.splits():
        spec = CacheSpec(
            path=join(config.cache_path, split),
            name=f"{basename(step.name)}/{split}",
            source=config.source,
            split=split,
            row_format=config.format,
            tokenizer=config.tokenizer,
            vocab_size=config.vocab_size,
            options=EncoderOptions(enforce_eos=config.enforce_eos, chat_template=config.chat_template),
            max_bad_records=config.max_bad_records,
        )
        ledger = build_cache(spec, workers=config.workers)
        counts[f"{split}_rows"], counts[f"{split}_tokens"] = ledger.rows, ledger.tokens
        if ledger.bad_rows:
            step.notes.append(f"{ledger.bad_rows} rows of {split} set aside")
    step.state_objects.add(TOKENS)
    return Summary(values=counts)


def default_tokenize(
    name: str,
    source: Any,
    tokenizer: str,
    *,
    validation: Any = (),
    format: TokenFormat | None = None,
    max_bad_records: int = 0,
    workers: int | None = None,
    resources: Resources | None = None,
) -> ExecutorStep:
    """A step that tokenizes.

    Args:
        name: the step is called `tokenized/NAME`.
        source: a place (or several) of documents or files, which may be another step's (`step / "documents"`), or a
            SourceConfig such as `HfSourceConfig(id=…)`.
        tokenizer: as in `data.tokenizer`.
        validation: places of held-out documents; in a SourceConfig they stand there.
        format: by default text.

    Example:
        tokens = default_tokenize("novels", documents / "documents", tokenizer="gpt2")
        train_cache = tokens / "tokens/train"
    """
    if not isinstance(source, SourceConfig):
        source = UrlSourceConfig(train_urls=_listed(source), validation_urls=_listed(validation))
    config = TokenizeConfig(
        source=source,
        tokenizer=tokenizer,
        format=format or TextFormat(),
        max_bad_records=max_bad_records,
        workers=workers,
    )
    return ExecutorStep(name=f"tokenized/{name}", fn=tokenize, config=config, resources=resources)


def _listed(places: Any) -> tuple[Any, ...]:
    return tuple(places) if isinstance(places, Sequence) and not isinstance(places, str) else (places,)
