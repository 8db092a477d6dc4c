"""Devices of TPU slices that are not here, by their compiler (libtpu): programs can be compiled for them, not run.

In: hardware by name. Out: its devices.
"""

import importlib.util
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from ponente.train.hardware import Hardware

# What the library asks the network for on a machine that it takes for a TPU's, and complains about elsewhere.
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


def has_compiler() -> bool:
    """Whether the compiler for TPUs is installed."""
    return importlib.util.find_spec("libtpu") is not None


def devices_of(hardware: Hardware) -> Sequence[jax.Device]:
    """The devices of a slice of TPUs; JAX's own error where no such slice is made."""
    assert hardware.topology is not None
    if jax.default_backend() != "tpu":
        for key, value in _QUIET.items():
            os.environ.setdefault(key, value)
    found = topologies.get_topology_desc(platform="tpu", topology_name=hardware.topology)
    devices: Sequence[jax.Device] = found.devices
    return devices
