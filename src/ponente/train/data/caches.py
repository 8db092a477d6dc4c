"""The token caches of a training run, opened; those that are not there are built, before training or beside it.

In: the data section. Out: for each dataset a cache with its row policy, by split. A cache that is there is held against
the config first, as `ponente cache-dataset` does.
"""

from dataclasses import dataclass, field

from ponente.batches.training import RowSource
from ponente.store.token_cache.cache import open_cache
from ponente.store.token_cache.ledger import read_ledger
from ponente.tokens.bar import showing_progress
from ponente.tokens.build import build_cache
from ponente.tokens.online import OnlineBuild
from ponente.tokens.spec import CacheSpec, cache_specs
from ponente.train.data.config import TrainDataConfig


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
    with showing_progress() as on_progress:
        for spec, component in _specs(data):
            policy = data.components[component].row_policy()
            place = opened.train if spec.split == "train" else opened.validation
            if read_ledger(spec.path) is not None:
                build_cache(spec)  # finished: it is only held against the config
            elif not data.auto_build_caches:
                pass  # opening it says what is missing
            elif beside_training and spec.split == "train" and policy.packing == "concatenated":
                build = OnlineBuild(spec, on_progress=on_progress)
                place[component] = RowSource(cache=build.cache(), policy=policy, on_wait=build.check)
                continue
            else:
                build_cache(spec, on_progress=on_progress)
            place[component] = RowSource(cache=open_cache(spec.path), policy=policy)
    return opened


def _specs(data: TrainDataConfig) -> list[tuple[CacheSpec, str]]:
    return [(spec, spec.name.rpartition("/")[0]) for spec in cache_specs(data)]
