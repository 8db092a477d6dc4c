"""What the GPU of this process can do."""

import logging
from functools import cache

import jax

from ponente.ops.platform import platform

MOST_NUMBERS = 2**31 - 1  # of an array that a kernel of ours takes: it counts them in 32 bits

logger = logging.getLogger(__name__)


def capability() -> float:
    """NVIDIA's compute capability, such as 9.0 for Hopper; 0 where there is no such GPU."""
    if platform() != "gpu":
        return 0.0
    try:
        return float(getattr(jax.devices()[0], "compute_capability", "0"))
    except ValueError:  # another vendor's name for it
        return 0.0


def has_triton() -> bool:
    """Whether our own kernels run here, which are written for Triton (Ampere and later); the log says so once."""
    return platform() == "gpu" and _has_triton()


@cache
def _has_triton() -> bool:
    found = capability() >= 8.0
    made_by = "our kernels" if found else "XLA's, for ours need a GPU of capability 8.0"
    logger.info("loss, gate, norms, mixtures, their weights, products of few rows: %s", made_by)
    return found
