"""Chunks tile the shards of an array, and are as large as they may be."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ponente.store.checkpoint.chunks import chunk_shape

AXES = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 1, 2, 3, 8])), max_size=4)


@given(AXES, st.sampled_from([1, 2, 4]), st.integers(1, 5000))
def test_no_chunk_lies_in_two_shards_and_none_is_too_large(
    axes: list[tuple[int, int]], itemsize: int, most: int
) -> None:
    shards = tuple(size for size, _ in axes)
    chunk = chunk_shape(tuple(size * parts for size, parts in axes), shards, itemsize, most)
    assert math.prod(chunk) * itemsize <= max(most, itemsize)
    for cut, (size, parts) in zip(chunk, axes, strict=True):
        assert 1 <= cut <= size
        assert parts == 1 or size % cut == 0


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_last_chunk_of_an_axis_wastes_little(size: int, most: int) -> None:
    (cut,) = chunk_shape((size,), (size,), 1, most)
    count = math.ceil(size / cut)
    assert count * cut - size < count


def test_what_fits_is_one_chunk() -> None:
    assert chunk_shape((12, 100, 7), (12, 100, 7), 4, 1 << 26) == (12, 100, 7)
    assert chunk_shape((), (), 4, 1 << 26) == ()
    assert chunk_shape((0, 5), (0, 5), 4, 1 << 26) == (1, 5)
