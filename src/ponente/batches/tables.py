"""Tables of the documents of rows that a device computes together, for attention kernels that take such.

A table has M places for each row, but the documents of all rows fill it in their order, whichever row they are in: a
kernel's time grows with the places, and rows differ more in how many documents they have than batches do.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FEWEST = 2  # places a row: cuDNN takes one for rows without documents
_MOST = 64  # with more, cuDNN takes longer than with a dense mask, and its statistics take gigabytes

logger = logging.getLogger(__name__)


class Tables(NamedTuple):
    """Where documents begin in the line of their rows, and their lengths; behind the last the line's end, and 0."""

    starts_BM: NDArray[np.int32]
    lengths_BM: NDArray[np.int32]


def no_tables(rows: int) -> Tables:
    """Tables without places, for kernels that take none."""
    nothing = np.zeros((rows, 0), np.int32)
    return Tables(nothing, nothing)


def tables_of(
    firsts: NDArray[np.int64],
    rows: int,
    length: int,
    rows_together: int,
    widest: Callable[[int], int] | None = None,
) -> Tables:
    """The tables of each `rows_together` rows; their width follows from the documents alone. None of very many.

    Args:
        firsts: where documents begin in the line of all rows, in order; each row begins one.
        widest: of the width that these rows need, that of all rows, where other processes have some of them.
    """
    assert rows % rows_together == 0
    line = rows_together * length
    group = firsts // line
    number = np.arange(len(firsts)) - np.searchsorted(group, group)
    width = _width(int(number.max()) + 1, rows_together)
    width = width if widest is None else widest(width)
    if width > _MOST:
        _say_crowded()
        return no_tables(rows)
    starts = np.full((rows // rows_together, rows_together * width), line, np.int32)
    lengths = np.zeros_like(starts)
    starts[group, number] = firsts - group * line
    lengths[group, number] = np.diff(np.append(firsts, rows * length))
    return Tables(starts.reshape(rows, width), lengths.reshape(rows, width))


@cache
def _say_crowded() -> None:
    logger.warning("some batches have more than %d documents a row: these take a slower kernel, with a mask", _MOST)


def _width(documents: int, rows: int) -> int:
    """Places a row that so many documents need: a power of two, so that few programs are compiled."""
    return max(_FEWEST, 1 << (-(-documents // rows) - 1).bit_length())
