"""Permutations are bijections, for every size and key, whatever else is in the same call."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.batches.keys import fold, root_key
from ponente.batches.permutation import PERMUTATIONS, Permutation

keys = st.integers(0, 2**64 - 1).map(np.uint64)
permutations = st.sampled_from(list(PERMUTATIONS.values()))


@given(permutation=permutations, n=st.integers(1, 700), key=keys)
def test_every_number_below_n_is_the_image_of_one(permutation: Permutation, n: int, key: np.uint64) -> None:
    assert sorted(permutation(np.arange(n), n, key).tolist()) == list(range(n))


@given(permutation=permutations, sizes=st.lists(st.integers(1, 2**40), min_size=1), key=keys, data=st.data())
def test_one_call_for_many_windows_gives_what_a_call_for_each_gives(
    permutation: Permutation, sizes: list[int], key: np.uint64, data: st.DataObject
) -> None:
    x = np.array([data.draw(st.integers(0, size - 1)) for size in sizes])
    together = permutation(x, np.array(sizes), fold(key, np.arange(len(sizes))))
    alone = [int(permutation(x[i : i + 1], sizes[i], fold(key, i))[0]) for i in range(len(sizes))]
    assert together.tolist() == alone
    assert all(0 <= image < size for image, size in zip(alone, sizes, strict=True))


@pytest.mark.parametrize("n", [10_007, 131_072])
def test_a_feistel_permutation_looks_random(n: int) -> None:
    image = PERMUTATIONS["feistel"](np.arange(n), n, root_key(0, "look"))
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.03
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.03
    assert np.mean(np.abs(np.diff(image)) == 1) < 10 / n + 0.001
    halves = np.bincount(image[: n // 2] * 16 // n, minlength=16)
    assert np.abs(halves - n / 32).max() < 6 * np.sqrt(n / 32)


def test_linear_numbers_do_not_overflow() -> None:
    n = 2**46 - 1
    x = np.array([0, 1, 2, n - 2, n - 1])
    image = PERMUTATIONS["linear"](x, n, root_key(3, "large")).tolist()
    factor, shift = (image[1] - image[0]) % n, image[0]
    assert image == [(factor * one + shift) % n for one in x.tolist()]


def test_keys_depend_on_seed_and_names_and_on_where_one_name_ends() -> None:
    assert len({int(root_key(*parts)) for parts in [(0, "a", "b"), (0, "ab"), (1, "a", "b"), (0, "b", "a")]}) == 4


def test_these_permutations_never_change() -> None:
    """Golden: a run that is resumed with a newer version must see the same order."""
    key = root_key(17, "golden")
    assert PERMUTATIONS["feistel"](np.arange(12), 12, key).tolist() == GOLDEN_FEISTEL
    assert PERMUTATIONS["linear"](np.arange(12), 12, key).tolist() == GOLDEN_LINEAR


GOLDEN_FEISTEL = [10, 2, 8, 6, 1, 7, 9, 0, 5, 4, 3, 11]
GOLDEN_LINEAR = [11, 6, 1, 8, 3, 10, 5, 0, 7, 2, 9, 4]
