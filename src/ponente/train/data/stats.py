"""How large the datasets of a config are, how long their documents, and how often a run will see them."""

from collections.abc import Iterator

import fsspec
import numpy as np
from numpy.typing import NDArray

from ponente.batches.rows import rows_of
from ponente.batches.training import RowSource
from ponente.store.paths import join
from ponente.store.token_cache.cache import TokenCache
from ponente.store.token_cache.ledger import SEGMENTS
from ponente.train.data.caches import OpenData, open_data
from ponente.train.data.settings import DataSettings
from ponente.train.data.table import table

_LENGTHS = 10_000_000  # documents whose lengths are looked at; of more, evenly spread ones


def stats(settings: DataSettings) -> Iterator[str]:
    """Shows sizes and lengths of every cache, then what the run takes of each dataset."""
    opened = open_data(settings.data)
    yield from table([*_sizes(settings, opened)])
    yield ""
    yield from _run(settings, opened)


def _sizes(settings: DataSettings, opened: OpenData) -> Iterator[tuple[str, ...]]:
    shape = settings.shape()
    rows_name = f"rows of {shape.length:,}"
    yield (
        "dataset",
        "tags",
        "documents",
        "tokens",
        "on disk",
        "mean",
        "median",
        "90%",
        "longest",
        rows_name,
        "padding",
    )
    for split, sources in (("train", opened.train), ("validation", opened.validation)):
        for name, source in sources.items():
            cache, lengths = source.cache, _lengths(source.cache)
            rows, share = _rows(source, settings)
            percentiles = (f"{int(np.percentile(lengths, percent)):,}" for percent in (50, 90))
            yield (
                f"{name}/{split}",
                ", ".join(settings.data.components[name].tags) or "-",
                f"{cache.rows:,}",
                f"{cache.tokens:,}",
                _bytes(fsspec.core.url_to_fs(join(cache.path, SEGMENTS))[0].du(join(cache.path, SEGMENTS))),
                f"{cache.tokens / cache.rows:,.0f}",
                *percentiles,
                f"{int(lengths.max()):,}",
                f"{rows:,}",
                f"{share:.1%}",
            )


def _rows(source: RowSource, settings: DataSettings) -> tuple[int, float]:
    """How many rows of training a cache gives, and which part of them is padding."""
    shape = settings.shape()
    rows = rows_of(source.cache, source.policy, shape)
    starts, stops = rows.spans(np.arange(rows.available))
    filled = int(np.minimum(stops - starts, shape.length).sum())
    return rows.available, 1 - filled / max(1, rows.available * shape.length)


def _lengths(cache: TokenCache) -> NDArray[np.int64]:
    """The lengths of documents; of very many, those of stretches spread over the cache."""
    if cache.rows <= _LENGTHS:
        return np.diff(cache.row_offsets(0, cache.rows))
    stretch = 10_000
    firsts = np.linspace(0, cache.rows - stretch, _LENGTHS // stretch).astype(int).tolist()
    return np.concatenate([np.diff(cache.row_offsets(first, first + stretch)) for first in firsts])


def _run(settings: DataSettings, opened: OpenData) -> Iterator[str]:
    shape = settings.shape()
    data = settings.training_data(opened)
    stream = data.stream
    steps = settings.trainer.steps(stream)
    examples = stream.schedule.first_example(steps)
    counts = stream.mixture.counts(examples)
    yield f"a run of {steps:,} steps takes {examples:,} rows, {examples * shape.length:,} tokens:"
    rows = [("dataset", "share", "rows seen", "epochs", "rows an epoch", "held out", "order")]
    for number, dataset in enumerate(stream.datasets):
        seen = int(counts[number])
        held_out = (settings.data.num_validation_sequences or {}).get(dataset.name, 0)
        share = f"{seen / max(1, examples):.2%}"
        epochs = f"{seen / dataset.length:.2f}"
        order = str(data.record()[dataset.name]["kind"])
        rows.append((dataset.name, share, f"{seen:,}", epochs, f"{dataset.length:,}", f"{held_out:,}", order))
    yield from table(rows)
    unused = [name for name in opened.train if name not in data.orders]
    if unused:
        yield f"not trained on (weight 0): {', '.join(unused)}"


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
