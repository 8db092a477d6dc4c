"""Arrays in host memory; what only devices with memory of their own do is tried on the CPU as if it were such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.store.checkpoint import snapshot
from ponente.store.checkpoint.snapshot import Staging, take_snapshot


@pytest.mark.parametrize("is_prepared", [False, True])
def test_large_arrays_go_in_pieces_and_arrive_whole(is_prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(snapshot, "_is_on_host", lambda data: data.nbytes <= 4096)
    arrays = {
        "stack": jax.random.normal(jax.random.key(0), (7, 16, 32)),
        "long": jax.random.normal(jax.random.key(1), (1003, 3), jnp.bfloat16),
        "wide": jax.random.normal(jax.random.key(2), (1, 2048)),
        "step": jnp.int32(7),
        "key": jax.random.key(3),
    }
    staging = Staging()
    if is_prepared:
        staging.prepare(arrays)
    staging.acquire()  # once the memory is there
    taken = take_snapshot(arrays, staging)
    for name, array in arrays.items():
        plain = jax.random.key_data(array) if name == "key" else array
        [(_, found)] = taken[name].shards
        np.testing.assert_array_equal(found, np.asarray(plain))
