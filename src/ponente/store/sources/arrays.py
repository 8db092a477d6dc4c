"""Arrow columns of number lists to numpy arrays, without a Python object for each number."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def number_lists(column: "pa.Array[Any]") -> list[NDArray[Any] | None]:
    """Each list of a list column as an array; None for a null, and for a list that has a null in it."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lists: Any = column
    flat, offsets = lists.values, lists.offsets.to_numpy()
    nulls = lists.is_null().to_numpy(zero_copy_only=False)
    numbers = flat.fill_null(0) if flat.null_count else flat
    values = numbers.to_numpy(zero_copy_only=False)
    holes = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)) if flat.null_count else np.empty(0, np.int64)
    broken = np.searchsorted(holes, offsets[1:]) > np.searchsorted(holes, offsets[:-1])
    return [
        None if null or hole else values[start:stop]
        for start, stop, null, hole in zip(offsets[:-1], offsets[1:], nulls, broken, strict=True)
    ]
