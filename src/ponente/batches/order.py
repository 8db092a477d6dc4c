"""In which order the examples of one dataset come: as they lie, or shuffled as a whole, by eras, or by blocks.

In: positions in an endless stream of epochs, the number of examples, a key. Out: which example stands at each. Every
epoch has an order of its own. Pure, vectorised, and without memory; a permutation is never written down.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from ponente.batches.keys import Key, Keys, fold
from ponente.batches.permutation import PERMUTATIONS, Indices, PermutationName
from ponente.config.errors import RefusedError

_BLOCKS, _WINDOW, _TAIL = range(3)  # what a key of an epoch is for


# Each order has `indices(positions, length, key)`: which example stands at each position, of which `length` is the
# first of the second epoch; and `horizon(position)`: how many examples must be known to place one of the first epoch,
# None for all of them.


class InOrder(msgspec.Struct, frozen=True, tag="in_order", tag_field="kind"):
    """As they lie in the cache."""

    def indices(self, positions: Indices, length: int, key: Key) -> Indices:
        return positions % length

    def horizon(self, position: int) -> int | None:
        return position + 1

    def __str__(self) -> str:
        return "in order"


class FullShuffle(msgspec.Struct, frozen=True, tag="full", tag_field="kind"):
    """One permutation of all examples."""

    permutation: PermutationName = "feistel"

    def indices(self, positions: Indices, length: int, key: Key) -> Indices:
        return PERMUTATIONS[self.permutation](positions % length, length, fold(key, positions // length))

    def horizon(self, position: int) -> int | None:
        return None

    def __str__(self) -> str:
        return f"full{_other(self.permutation)}"


class EraShuffle(msgspec.Struct, frozen=True, tag="era", tag_field="kind"):
    """Permutations within eras of so many examples: what lies far behind need not be there yet."""

    era: int
    permutation: PermutationName = "feistel"

    def indices(self, positions: Indices, length: int, key: Key) -> Indices:
        within = positions % length
        era = within // self.era
        first = era * self.era
        keys = fold(fold(key, positions // length), era)
        return first + PERMUTATIONS[self.permutation](within - first, np.minimum(self.era, length - first), keys)

    def horizon(self, position: int) -> int | None:
        return (position // self.era + 1) * self.era

    def __str__(self) -> str:
        return f"eras of {self.era:,}{_other(self.permutation)}"


class BlockShuffle(msgspec.Struct, frozen=True, tag="block", tag_field="kind"):
    """Permutes blocks of neighbours, then the examples within windows of permuted blocks: reads stay near each other.

    The examples after the last whole block come last, permuted among themselves.
    """

    io_block_size: int = 256
    window_blocks: int = 512
    permutation: PermutationName = "feistel"

    def indices(self, positions: Indices, length: int, key: Key) -> Indices:
        within, epoch_key = positions % length, fold(key, positions // length)
        blocks, block = length // self.io_block_size, self.io_block_size
        result = np.empty_like(within)
        is_whole = within < blocks * block
        result[is_whole] = self._in_windows(within[is_whole], blocks, epoch_key[is_whole])
        tail, tail_key = within[~is_whole] - blocks * block, fold(epoch_key[~is_whole], _TAIL)
        result[~is_whole] = blocks * block + self._permute(tail, max(1, length - blocks * block), tail_key)
        return result

    def _in_windows(self, within: Indices, blocks: int, key: Keys) -> Indices:
        window = within // (self.io_block_size * self.window_blocks)
        first_block = window * self.window_blocks
        size = np.minimum(self.window_blocks, blocks - first_block) * self.io_block_size
        place = self._permute(within - first_block * self.io_block_size, size, fold(fold(key, _WINDOW), window))
        block = self._permute(first_block + place // self.io_block_size, max(1, blocks), fold(key, _BLOCKS))
        return block * self.io_block_size + place % self.io_block_size

    def _permute(self, x: Indices, n: Indices | int, key: Keys) -> Indices:
        return PERMUTATIONS[self.permutation](x, n, key)

    def horizon(self, position: int) -> int | None:
        return None

    def __str__(self) -> str:
        return f"blocks of {self.io_block_size:,} in windows of {self.window_blocks:,}{_other(self.permutation)}"


def _other(permutation: PermutationName) -> str:
    return "" if permutation == "feistel" else f", {permutation}"


AnyOrder = InOrder | FullShuffle | EraShuffle | BlockShuffle


@dataclass(frozen=True, kw_only=True)
class BlockShuffleConfig:
    """`shuffle: {io_block_size: 256, window_blocks: 512, perm_type: feistel}`."""

    io_block_size: int = 256
    window_blocks: int = 512
    perm_type: Literal["feistel", "linear"] = "feistel"


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The keys of the data section that say in which order examples come."""

    shuffle: bool | int | BlockShuffleConfig | None = None  # None: by blocks
    permutation_type: Literal["feistel", "linear"] | None = None  # of any shuffle; None: feistel

    def order(self) -> AnyOrder:
        """The order that was asked for, or the default."""
        shuffle, permutation = self.shuffle, self.permutation_type or "feistel"
        if shuffle is None:
            shuffle = BlockShuffleConfig(perm_type=permutation)
        if isinstance(shuffle, BlockShuffleConfig):
            if self.permutation_type not in (None, shuffle.perm_type):
                raise RefusedError(
                    f"found data.permutation_type: {self.permutation_type} and data.shuffle.perm_type: "
                    f"{shuffle.perm_type}; needed one of them. Remove data.permutation_type."
                )
            _positive("shuffle.io_block_size", shuffle.io_block_size)
            _positive("shuffle.window_blocks", shuffle.window_blocks)
            return BlockShuffle(shuffle.io_block_size, shuffle.window_blocks, shuffle.perm_type)
        if shuffle is True:
            return FullShuffle(permutation)
        if shuffle is False:
            return InOrder()
        _positive("shuffle", shuffle)
        return EraShuffle(shuffle, permutation)


def _positive(key: str, value: int) -> None:
    if value < 1:
        raise RefusedError(
            f"found data.{key}: {value}; needed 1 or more. Give a number of examples, or shuffle: true or false."
        )
