"""The token caches of a training run, opened; those that are not there are built, before training or beside it.

In: the data section. Out: for each dataset a cache with its row policy, by split. A cache that is there is held against
the config first, as `ponente cache-dataset` does.
"""

import logging
import os
from dataclasses import dataclass, field

from ponente.batches.training import RowSource
from ponente.store.token_cache.cache import open_cache
from ponente.store.token_cache.ledger import read_ledger
from ponente.tokens.bar import showing_progress
from ponente.tokens.build import build_cache
from ponente.tokens.online import OnlineBuild
from ponente.tokens.spec import CacheSpec, cache_specs
from ponente.train.data.config import TrainDataConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenData:
    """The caches of a run, by the names of their datasets."""

    train: dict[str, RowSource] = field(default_factory=dict)
    validation: dict[str, RowSource] = field(default_factory=dict)


def open_data(data: TrainDataConfig, *, beside_training: bool = False) -> OpenData:
    """Opens every cache of a config; builds what is missing, unless `auto_build_caches` forbids it.

    Args:
        beside_training: train splits whose rows can be read one after the other are built in the background.
    """
    opened = OpenData()
    specs = [(spec, spec.name.rpartition("/")[0]) for spec in cache_specs(data)]
    missing = [one for one in specs if data.auto_build_caches and read_ledger(one[0].path) is None]
    for spec, _ in missing if len(missing) > 1 else ():  # a file that is not there is told before anything is built
        spec.source.fingerprints(spec.split)
    growing = [
        (spec, name)
        for spec, name in missing
        if beside_training and spec.split == "train" and data.reads_in_order(name)
    ]
    with showing_progress() as on_progress:
        for spec, name in specs:
            if (spec, name) in growing:
                continue
            is_there = read_ledger(spec.path) is not None
            if is_there or data.auto_build_caches:  # else opening it says what is missing
                ledger = build_cache(spec, on_progress=on_progress)
                if not is_there:
                    logger.info("built the cache of %s: %s documents, %s tokens", spec.name, ledger.rows, ledger.tokens)
            place = opened.train if spec.split == "train" else opened.validation
            place[name] = RowSource(cache=open_cache(spec.path), policy=data.components[name].row_policy())
    for spec, name in growing:
        opened.train[name] = _begun(spec, data, max(1, (os.cpu_count() or 1) // len(growing)))
    order = list(data.components)
    return OpenData(
        {name: opened.train[name] for name in order if name in opened.train},
        {name: opened.validation[name] for name in order if name in opened.validation},
    )


def _begun(spec: CacheSpec, data: TrainDataConfig, workers: int) -> RowSource:
    """A cache that is built in the background, as soon as it has rows."""
    logger.info("building the cache of %s while training", spec.name)
    build = OnlineBuild(spec, workers=workers)
    policy = data.components[spec.name.rpartition("/")[0]].row_policy()
    return RowSource(cache=build.cache(), policy=policy, on_wait=build.check)
