"""64-bit keys for every random choice of the data: folded from a seed, names and numbers, never drawn in turn.

In: a key and what to fold into it. Out: another key. A key depends on nothing but its own names and numbers, so that
adding a dataset changes no choice that is made for another. Arithmetic is modulo 2**64, on whole arrays.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Key = np.uint64
Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def root_key(seed: int, *names: str) -> Key:
    """The key of a seed and names: `root_key(0, "shuffle", "wiki")`."""
    text = "\x00".join((str(seed), *names)).encode()
    return Key(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


def fold(key: Keys | Key, number: NDArray[np.int64] | int) -> Keys:
    """The keys of numbers under a key, element by element; an array, of one element for one number."""
    numbers = np.atleast_1d(np.asarray(number)).astype(np.uint64)
    return mix(np.atleast_1d(key) + (numbers + np.uint64(1)) * _GOLDEN)


def mix(values: Keys) -> Keys:
    """A bijection of 64-bit numbers in which every bit depends on every bit (the finalizer of SplitMix64).

    `values` is an array with at least one axis, whose arithmetic wraps around without a warning.
    """
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
