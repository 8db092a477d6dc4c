"""Which dataset each example of a mixture comes from, and which of its examples: in closed form, for any index.

In: weights, perhaps staged, and indices of the mixture. Out: (dataset, position in its own endless stream). Each block
of the mixture holds the same number of examples of a dataset, or one more; over a period of blocks the numbers are the
weights to one part in two million. A weight too small for one example a block gets one in some blocks, never none.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponente.batches.keys import Key, fold
from ponente.batches.permutation import Indices
from ponente.config.errors import RefusedError

logger = logging.getLogger(__name__)

StopStrategy = Literal["restart", "first_exhausted", "all_exhausted"]

PERIOD = 1024  # blocks after which the numbers of examples repeat
_KEPT_BLOCKS = 64


@dataclass(frozen=True)
class WeightStage:
    """Weights from an example of the mixture on."""

    start: int
    weights: Mapping[str, float]


@dataclass(frozen=True)
class _Block:
    """The slots of one block: whose example each is, and which of that dataset's in the block."""

    dataset: NDArray[np.int64]
    rank: NDArray[np.int64]


class _Counts:
    """How many examples of each dataset the blocks of one stage hold."""

    def __init__(self, weights: NDArray[np.float64], block_size: int) -> None:
        self.block_size = block_size
        self._of_period = _apportioned(weights, block_size * PERIOD)
        base, extra = np.divmod(self._of_period, PERIOD)
        self.of_block = np.tile(base, (PERIOD, 1))  # [PERIOD, D]
        spread = _bit_reversed(PERIOD)
        ends = np.cumsum(extra)
        for dataset, (end, count) in enumerate(zip(ends, extra, strict=True)):
            self.of_block[spread[np.arange(end - count, end) % PERIOD], dataset] += 1
        self._before = np.concatenate([np.zeros_like(base)[None], np.cumsum(self.of_block, axis=0)])

    def before(self, block: int) -> NDArray[np.int64]:
        """How many examples of each dataset stand before the block."""
        periods, rest = divmod(block, PERIOD)
        counted: NDArray[np.int64] = periods * self._of_period + self._before[rest]
        return counted


class Mixture:
    """Datasets in given proportions.

    Example:
        mixture = Mixture(["web", "code"], [WeightStage(0, {"web": 3, "code": 1})], 2048, root_key(0, "mixture"))
        dataset, position = mixture.locate(np.arange(512))   # of the first 512 examples
    """

    def __init__(self, names: Sequence[str], stages: Sequence[WeightStage], block_size: int, key: Key) -> None:
        self.names = tuple(names)
        self.block_size = block_size
        self._key = key
        self._starts = np.array([stage.start for stage in stages], np.int64)
        shares = [_normalized(self.names, stage) for stage in stages]
        for one in shares:
            _check_lifted(self.names, one, block_size * PERIOD)
        self._counts = [_Counts(one, block_size) for one in shares]
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._before_stage = [np.zeros(len(names), np.int64)]
        for number, (start, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            self._before_stage.append(self._before_stage[-1] + self._taken(number, int(end - start)))

    def locate(self, indices: Indices) -> tuple[Indices, Indices]:
        """The number of the dataset, and the position in its stream, of each example of the mixture."""
        if len(self.names) == 1:
            return np.zeros_like(indices), indices
        stage = np.searchsorted(self._starts, indices, side="right") - 1
        block, slot = np.divmod(indices - self._starts[stage], self.block_size)
        dataset, position = np.empty_like(indices), np.empty_like(indices)
        pairs, which = np.unique(np.stack([stage, block]), axis=1, return_inverse=True)
        for number, (one_stage, one_block) in enumerate(pairs.T.tolist()):
            here = np.flatnonzero(which.ravel() == number)
            slots = self._block(one_stage, one_block)
            found = slots.dataset[slot[here]]
            before = self._before_stage[one_stage] + self._counts[one_stage].before(one_block)
            dataset[here] = found
            position[here] = before[found] + slots.rank[slot[here]]
        return dataset, position

    def counts(self, index: int) -> NDArray[np.int64]:
        """How many examples of each dataset stand before an index."""
        stage = int(np.searchsorted(self._starts, index, side="right")) - 1
        taken: NDArray[np.int64] = self._before_stage[stage] + self._taken(stage, index - int(self._starts[stage]))
        return taken

    def length(self, lengths: Sequence[int], strategy: StopStrategy) -> int | None:
        """How many examples the mixture has; None where it goes on for ever."""
        if strategy == "restart":
            return None
        if strategy == "first_exhausted":
            return self._first_index(lambda counts: bool((counts > np.array(lengths)).any())) - 1
        return self._all_seen(lengths)

    def _all_seen(self, lengths: Sequence[int]) -> int:
        """The fewest examples of the mixture among which every example of each dataset is."""
        never = [
            name
            for name, length, last, before in zip(
                self.names, lengths, self._counts[-1].before(PERIOD), self._before_stage[-1], strict=True
            )
            if last == 0 and before < length
        ]
        if never:
            raise RefusedError(
                f"found that {', '.join(never)} has weight 0 in the last stage, before it was seen whole; needed "
                "weights with which every dataset is exhausted. Give it a weight, or use stop_strategy: restart."
            )
        return self._first_index(lambda counts: bool((counts >= np.array(lengths)).all()))

    def _first_index(self, holds: Callable[[NDArray[np.int64]], bool]) -> int:
        """The smallest index before which the counts have a property that stays once it holds."""
        high = self.block_size
        while not holds(self.counts(high)):
            high *= 2
        low = 0
        while low < high:
            middle = (low + high) // 2
            if holds(self.counts(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _taken(self, stage: int, examples: int) -> NDArray[np.int64]:
        """How many examples of each dataset the first examples of a stage take."""
        block, rest = divmod(examples, self.block_size)
        whole = self._counts[stage].before(block)
        if not rest:
            return whole
        return whole + np.bincount(self._block(stage, block).dataset[:rest], minlength=len(self.names))

    def _block(self, stage: int, block: int) -> _Block:
        place = (stage, block)
        if place not in self._blocks:
            counts = self._counts[stage].of_block[block % PERIOD]
            keys = fold(fold(fold(self._key, stage), block), np.arange(self.block_size))
            dataset = np.repeat(np.arange(len(self.names)), counts)[np.argsort(keys, kind="stable")]
            rank = np.empty_like(dataset)
            firsts = np.cumsum(counts) - counts
            rank[np.argsort(dataset, kind="stable")] = np.arange(self.block_size) - np.repeat(firsts, counts)
            self._blocks[place] = _Block(dataset, rank)
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[place]


def _normalized(names: Sequence[str], stage: WeightStage) -> NDArray[np.float64]:
    weights = np.array([stage.weights.get(name, 0.0) for name in names], np.float64)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _check_lifted(names: Sequence[str], weights: NDArray[np.float64], total: int) -> None:
    """Says which weights are too small for the proportions to hold."""
    lifted = [name for name, weight in zip(names, weights, strict=True) if 0 < weight * total < 0.5]
    if len(lifted) >= total // 2:
        raise RefusedError(
            f"found {len(lifted):,} datasets with tiny weights in a mixture that repeats after {total:,} examples; "
            "needed fewer than half as many. Raise data.mixture_block_size."
        )
    if lifted:
        logger.warning("mixture: %s get one example in %s each, more than their weights say", ", ".join(lifted), total)


def _apportioned(weights: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`, in proportion to the weights, and at least 1 where a weight is positive."""
    exact = weights * total
    counts = np.where(weights > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    by_remainder = np.argsort(-(exact - counts), kind="stable")
    missing = total - int(counts.sum())
    if missing >= 0:
        counts[by_remainder[:missing]] += 1
    else:  # more weights were lifted to 1 than remainders make up for
        counts[np.argmax(counts)] += missing
    return counts


def _bit_reversed(size: int) -> NDArray[np.int64]:
    """0 to size - 1 (a power of two) in an order in which neighbours lie far apart."""
    order = np.zeros(1, np.int64)
    while len(order) < size:
        order = np.concatenate([order * 2, order * 2 + 1])
    return order
