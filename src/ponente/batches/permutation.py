"""Random permutations without memory: the image of any number, or of a whole array of them, at once.

In: numbers x below n, and keys. Out: where each goes. x, n and key are arrays that broadcast, so that one call serves
numbers of many windows, each with its own size and key. `feistel` mixes well; `linear` is cheaper and mixes poorly.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponente.batches.keys import Keys, mix

Indices = NDArray[np.int64]
PermutationName = Literal["feistel", "linear"]
Permutation = Callable[[Indices, Indices | int, Keys], Indices]

_ONE = np.uint64(1)
_SHIFT = np.uint64(32)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# Odd, one for each round; an even number of rounds, so that both halves have their widths again at the end.
_KEY_FACTORS = tuple(
    np.uint64(0x2545F4914F6CDD1D + 0x5851F42D4C957F2E * number & 0xFFFFFFFFFFFFFFFF) for number in range(6)
)


def feistel(x: Indices, n: Indices | int, key: Keys) -> Indices:
    """A Feistel network over the bits that n needs, applied again until the result is below n."""
    shape = np.broadcast_shapes(np.shape(x), np.shape(n), np.shape(key))
    sizes = np.broadcast_to(np.asarray(n, np.uint64), shape).ravel()
    keys = np.broadcast_to(np.asarray(key, np.uint64), shape).ravel()
    values = np.broadcast_to(np.asarray(x, np.uint64), shape).ravel()
    bits = np.maximum(np.frexp((sizes - _ONE).astype(np.float64))[1], 2).astype(np.uint64)  # exact below 2**53
    round_keys = [keys * factor for factor in _KEY_FACTORS]
    values = _encrypt(values, bits, round_keys)
    todo = np.flatnonzero(values >= sizes)
    while len(todo):
        walked = _encrypt(values[todo], bits[todo], [one[todo] for one in round_keys])
        values[todo] = walked
        todo = todo[walked >= sizes[todo]]
    return values.astype(np.int64).reshape(shape)


def _encrypt(values: Keys, bits: Keys, round_keys: list[Keys]) -> Keys:
    """A bijection of the numbers of so many bits."""
    width = bits >> _ONE  # of the right half
    left_mask, right_mask = (_ONE << (bits - width)) - _ONE, (_ONE << width) - _ONE
    left, right = values >> width, values & right_mask
    for key in round_keys:
        mixed = (right + key) * _FACTOR
        mixed = (mixed ^ (mixed >> _SHIFT)) * _FACTOR >> _SHIFT
        left, right = right, left ^ (mixed & left_mask)
        left_mask, right_mask = right_mask, left_mask
    joined: Keys = (left << width) | right
    return joined


def linear(x: Indices, n: Indices | int, key: Keys) -> Indices:
    """a·x + b modulo n, with a prime to n."""
    n_, key = np.broadcast_arrays(np.atleast_1d(np.asarray(n, np.uint64)), np.atleast_1d(np.asarray(key, np.uint64)))
    factor = mix(key) % n_
    while (bad := np.gcd(factor, n_) != _ONE).any():
        factor = np.where(bad, (factor + _ONE) % n_, factor)
    shift = mix(key + _ONE) % n_
    product = np.zeros_like(factor)
    for limb in (32, 16, 0):  # 16 bits of x at a time: nothing overflows below 2**47
        part = (np.asarray(x, np.uint64) >> np.uint64(limb)) & np.uint64(0xFFFF)
        product = (product * np.uint64(1 << 16) + factor * part) % n_
    shifted: NDArray[np.uint64] = (product + shift) % n_
    return shifted.astype(np.int64)


PERMUTATIONS: dict[PermutationName, Permutation] = {"feistel": feistel, "linear": linear}
