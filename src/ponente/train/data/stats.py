"""How large the datasets of a config are, how long their documents, and what of them a run sees, how often."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from ponente.batches.batch import LOSS_MASK, LOSS_WEIGHTS
from ponente.batches.rows import rows_of, tokens_in
from ponente.batches.shape import BatchShape
from ponente.batches.training import RowSource
from ponente.config.errors import RefusedError
from ponente.store.paths import join
from ponente.store.token_cache.cache import TokenCache
from ponente.store.token_cache.ledger import SEGMENTS
from ponente.store.usage import size_of
from ponente.train.data.caches import OpenData, open_data
from ponente.train.data.settings import DataSettings
from ponente.train.data.table import counted, table

_LENGTHS = 10_000_000  # documents whose lengths are looked at; of more, evenly spread ones
_WEIGHTS = 50_000_000  # tokens whose weights are looked at; of more, the first


def stats(settings: DataSettings) -> Iterator[str]:
    """Shows sizes and lengths of every cache, the rows it gives, then what the run takes of each dataset."""
    settings.check()
    opened = open_data(settings.data)
    sources = {f"{name}/train": source for name, source in opened.train.items()}
    sources |= {f"{name}/validation": source for name, source in opened.validation.items()}
    yield from table([*_sizes(sources)])
    yield ""
    refused: list[str] = []
    yield from table([*_rows(sources, settings.shape(), refused)])
    yield from refused
    tagged = {name: component.tags for name, component in settings.data.components.items() if component.tags}
    for name, tags in tagged.items():
        yield f"  {name} is evaluated under: {', '.join(tags)}"
    yield ""
    yield from _run(settings, opened)


def _sizes(sources: dict[str, RowSource]) -> Iterator[tuple[str, ...]]:
    yield ("dataset", "documents", "tokens", "on disk", "mean", "median", "90%", "longest")
    for name, source in sources.items():
        cache, lengths = source.cache, _lengths(source.cache)
        segments = join(cache.path, SEGMENTS)
        yield (
            name,
            f"{cache.rows:,}",
            f"{cache.tokens:,}",
            decimal(size_of(segments)),
            f"{cache.tokens / cache.rows:,.0f}",
            *(f"{int(np.percentile(lengths, percent)):,}" for percent in (50, 90)),
            f"{int(lengths.max()):,}",
        )


def _lengths(cache: TokenCache) -> NDArray[np.int64]:
    """The lengths of documents; of very many, those of stretches spread over the cache."""
    if cache.rows <= _LENGTHS:
        return np.diff(cache.row_offsets(0, cache.rows))
    stretch = 10_000
    firsts = np.linspace(0, cache.rows - stretch, _LENGTHS // stretch).astype(int).tolist()
    return np.concatenate([np.diff(cache.row_offsets(first, first + stretch)) for first in firsts])


def _rows(sources: dict[str, RowSource], shape: BatchShape, refused: list[str]) -> Iterator[tuple[str, ...]]:
    """What each cache gives; a policy that cannot be met is told below the table."""
    yield ("dataset", f"rows of {shape.length:,}", "padding", "tokens kept", "that count")
    for name, source in sources.items():
        try:
            rows = rows_of(source.cache, source.policy, shape)
        except RefusedError as error:
            refused.append(f"  {name}: {error}")
            yield (name, "-", "-", "-", "-")
            continue
        filled = tokens_in(rows, shape.length)
        yield (
            name,
            f"{rows.available:,}",
            f"{1 - filled / max(1, rows.available * shape.length):.1%}",
            f"{filled / source.cache.tokens:.1%}",
            f"{_weighed(source.cache):.1%}",
        )


def _weighed(cache: TokenCache) -> float:
    """Which part of the tokens the loss counts."""
    columns = [column for column in (LOSS_MASK, LOSS_WEIGHTS) if column in cache.columns]
    stop = min(cache.tokens, _WEIGHTS)
    return float(np.mean(cache.read(0, stop, columns[0]) > 0)) if columns else 1.0


def _run(settings: DataSettings, opened: OpenData) -> Iterator[str]:
    shape, data = settings.shape(), settings.training_data(opened)
    stream = data.stream
    steps = settings.trainer.steps(stream)
    counts = stream.counts(steps)
    examples = int(counts.sum())
    tokens = f"{examples * shape.length:,} tokens with padding"
    yield f"a run of {counted(steps, 'step')} takes {counted(examples, 'row')}, {tokens}:"
    rows = [("dataset", "weight", "share", "rows seen", "epochs", "rows an epoch", "held out", "order")]
    for number, dataset in enumerate(stream.datasets):
        seen = int(counts[number])
        held_out = (settings.data.num_validation_sequences or {}).get(dataset.name, 0)
        share, epochs = f"{seen / max(1, examples):.2%}", f"{seen / dataset.length:.2f}"
        row = (dataset.name, _weight(settings, dataset.name), share, f"{seen:,}", epochs, f"{dataset.length:,}")
        rows.append((*row, f"{held_out:,}", str(dataset.order)))
    yield from table(rows)
    unused = [name for name in opened.train if name not in data.orders]
    if unused:
        yield f"not trained on (weight 0): {', '.join(unused)}"
    budget = settings.data.experiment_budget
    if budget is not None and abs(examples * shape.length / budget - 1) > 0.01:
        yield f"data.experiment_budget is {budget:,} tokens, not those of this run: it repeats otherwise than simulated"


def _weight(settings: DataSettings, name: str) -> str:
    weights = settings.data.train_weights
    if weights is None:
        return "1"
    return f"{weights.get(name, 0):g}" if isinstance(weights, dict) else "staged"
