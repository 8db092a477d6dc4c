"""Made `format-1/step-3` once, with version 0.1.0; not to be run again: what it wrote must load for ever."""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ponente.store.checkpoint import begin_save


def arrays() -> dict[str, jax.Array]:
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    return {
        "model.w_DF": jax.device_put(
            jnp.arange(24.0).reshape(4, 6), NamedSharding(mesh, PartitionSpec("data", "model"))
        ),
        "model.norm_D": jnp.linspace(0, 1, 5).astype(jnp.bfloat16),
        "model.nothing": jnp.zeros((0, 3), jnp.float16),
        "optimizer.0.count": jnp.array(7, jnp.int32),
        "optimizer.0.mask": jnp.array([True, False]),
        "seeds": jnp.array([1, 2**32 - 1], jnp.uint32),
        "key": jax.random.split(jax.random.key(5), 2),
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("format-1") / "step-3"
    begin_save(str(path), arrays(), {"run": "golden", "seen": [1, None, 2.5]}, is_temporary=True).wait()
