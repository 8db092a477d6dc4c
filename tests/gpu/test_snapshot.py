"""Arrays of a GPU in host memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.store.checkpoint import snapshot
from ponente.store.checkpoint.snapshot import Staging, take_snapshot


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_snapshot_has_the_numbers_of_arrays_that_go_in_pieces(
    is_prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "WINDOW_BYTES", 1 << 16)
    arrays = {
        "stack": jax.random.normal(jax.random.key(0), (7, 64, 128)),
        "table": jax.random.normal(jax.random.key(1), (5003, 16), jnp.bfloat16),
        "small": jnp.arange(10),
        "step": jnp.int32(7),
    }
    staging = Staging()
    if is_prepared:
        staging.prepare(arrays)
    staging.acquire()
    for shift in (0, 1):  # the same memory is used again
        given = {name: array + shift for name, array in arrays.items()}
        taken = take_snapshot(given, staging)
        for name, array in given.items():
            [(_, found)] = taken[name].shards
            np.testing.assert_array_equal(found, np.asarray(array))
