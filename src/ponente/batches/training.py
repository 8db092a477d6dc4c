"""The stream of batches of a training run, and the sets that it is evaluated on, from caches and a config.

In: caches with how their documents become rows, the mixture's config, batch sizes, a seed. Out: the stream, the orders
that it uses (a run keeps them in its record, and hands them back when it resumes), and finite streams for evaluation.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from ponente.batches.config import MixtureConfig
from ponente.batches.dataset import Dataset, held_out_rows
from ponente.batches.keys import root_key
from ponente.batches.mixture import Mixture, WeightStage
from ponente.batches.order import AnyOrder, InOrder
from ponente.batches.permutation import Indices
from ponente.batches.rows import RowPolicy, Rows, SomeRows, rows_of, tokens_in
from ponente.batches.schedule import BatchSchedule
from ponente.batches.shape import BatchShape
from ponente.batches.stream import BatchStream
from ponente.config.errors import RefusedError
from ponente.store.token_cache.cache import TokenCache

_MUCH_PADDING = 0.25  # of all tokens in rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """A cache, and how its documents become rows."""

    cache: TokenCache
    policy: RowPolicy
    on_wait: Callable[[], None] | None = None  # is called while the cache is waited for; raises if its build failed


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on."""

    stream: BatchStream

    @property
    def orders(self) -> dict[str, AnyOrder]:
        """In which order each dataset comes."""
        return {dataset.name: dataset.order for dataset in self.stream.datasets}

    def record(self) -> dict[str, dict[str, object]]:
        """The orders in use, as JSON, for the record of a run."""
        return {name: msgspec.to_builtins(order) for name, order in self.orders.items()}


def training_data(
    config: MixtureConfig,
    sources: Mapping[str, RowSource],
    schedule: BatchSchedule,
    shape: BatchShape,
    seed: int,
    *,
    untrained: Collection[str] = (),
    recorded: Mapping[str, Mapping[str, object]] | None = None,
) -> TrainingData:
    """The stream of a run over the train splits of datasets.

    Args:
        untrained: datasets without a train split, whose weight may be 0.
        recorded: `TrainingData.record()` of the run that this one resumes: its orders are kept.
    """
    names = list(sources)
    config.check_names(names)
    stages = config.stages(names, schedule, untrained)
    used = [name for name in names if any(stage.weights.get(name, 0) for stage in stages)]
    config.check_budgets()
    datasets = []
    for name in used:
        source = sources[name]
        rows = rows_of(source.cache, source.policy, shape)
        _tell_padding(name, rows, source.policy, shape.length)
        dataset = Dataset(
            name,
            rows,
            _order(config, name, (recorded or {}).get(name)),
            seed,
            held_out=_held_out(config, name, rows, source, seed),
            shift=shape.length if config.shift_epochs and source.policy.packing == "concatenated" else None,
            on_wait=source.on_wait,
        )
        datasets.append(_limited(dataset, config, schedule))
    mixture = Mixture(used, stages, config.mixture_block_size, root_key(seed, "mixture"))
    return TrainingData(BatchStream(datasets, mixture, schedule, shape, config.stop_strategy))


def _tell_padding(name: str, rows: Rows, policy: RowPolicy, length: int) -> None:
    """Says where much of what is computed will be for nothing."""
    if policy.packing == "concatenated" or not rows.available:
        return
    padding = 1 - tokens_in(rows, length) / (rows.available * length)
    if padding > _MUCH_PADDING:
        remedy = "pack: true puts several into a row, pack: concat cuts all in one line; or set a shorter train_seq_len"
        logger.warning("%.0f%% of the rows of %s is padding, for documents are short: %s", 100 * padding, name, remedy)


def _order(config: MixtureConfig, name: str, recorded: Mapping[str, object] | None) -> AnyOrder:
    if recorded is None:
        return config.order()
    try:
        kept: AnyOrder = msgspec.convert(recorded, AnyOrder)
    except msgspec.ValidationError as error:
        raise RefusedError(
            f"found {dict(recorded)} as the recorded order of {name} ({error}); needed one that this version "
            "of ponente knows. Upgrade, or start a new run."
        ) from error
    asks = config.shuffle is not None or config.permutation_type is not None
    if asks and config.order() != kept:
        raise RefusedError(
            f"found data.shuffle: {config.shuffle} and permutation_type: {config.permutation_type}, but the run that "
            f"is resumed reads {name} in the order {dict(recorded)}; needed the same. Leave data.shuffle as it was, or "
            "start a new run."
        )
    return kept


def _held_out(config: MixtureConfig, name: str, rows: Rows, source: RowSource, seed: int) -> Indices | None:
    count = (config.num_validation_sequences or {}).get(name)
    if count is None:
        return None
    if not source.cache.is_finished:
        raise RefusedError(
            f"found data.num_validation_sequences for {name}, whose cache is still being built; needed a finished one "
            "to hold rows out. Build it first: ponente cache-dataset --config_path CONFIG.yaml"
        )
    return held_out_rows(name, seed, rows.available, count)


def _limited(dataset: Dataset, config: MixtureConfig, schedule: BatchSchedule) -> Dataset:
    """The dataset, or the part of it that the config asks for; refuses one without a row."""
    if dataset.rows.cache.is_finished and dataset.length < 1:
        raise RefusedError(
            f"found no row to train on in {dataset.name} ({dataset.rows.cache.path}, {dataset.rows.cache.rows:,} "
            "documents); needed at least one. Its documents may all be longer than a row and dropped: look at "
            "train_seq_len, over_length and num_validation_sequences, or give it weight 0."
        )
    batches = (config.max_train_batches or {}).get(dataset.name)
    if batches is not None:
        return dataset.limited(batches * schedule.size(0))
    if config.target_budget is None:  # else the length would be waited for
        return dataset
    simulated = config.simulated_rows(dataset.length)
    return dataset if simulated is None else dataset.limited(simulated)


def held_out_stream(
    config: MixtureConfig, name: str, source: RowSource, batch_size: int, shape: BatchShape, seed: int
) -> BatchStream:
    """The rows of a train split that are held out for validation, once, in order."""
    rows = rows_of(source.cache, source.policy, shape)
    held_out = _held_out(config, name, rows, source, seed)
    assert held_out is not None
    return _once(name, SomeRows(rows, held_out), batch_size, shape, source)


def evaluation_stream(name: str, source: RowSource, batch_size: int, shape: BatchShape) -> BatchStream:
    """All rows of a cache, once, in order; the last batch is filled up with padding."""
    return _once(name, rows_of(source.cache, source.policy, shape), batch_size, shape, source)


def _once(name: str, rows: Rows, batch_size: int, shape: BatchShape, source: RowSource) -> BatchStream:
    mixture = Mixture([name], [WeightStage(0, {name: 1.0})], batch_size, root_key(0, "mixture"))
    dataset = Dataset(name, rows, InOrder(), seed=0, on_wait=source.on_wait)
    return BatchStream([dataset], mixture, BatchSchedule.of(batch_size), shape, "first_exhausted")
