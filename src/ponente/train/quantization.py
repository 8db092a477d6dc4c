"""Which products of training are made in fewer bits: `trainer.quantization: {fp8: true}`."""

import logging
from dataclasses import dataclass
from typing import TypeVar

import jax

from ponente.config.errors import RefusedError
from ponente.models.parameters import path_name
from ponente.ops.fp8 import Fp8Weight
from ponente.ops.gpu import capability
from ponente.ops.mesh import is_split

Tree = TypeVar("Tree")

_LEAST_CAPABILITY = 8.9  # of a GPU with such products: Ada, Hopper

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """Products of the layers' weights, forward and backward; all else is as `trainer.mp` says, evaluation too."""

    fp8: bool = False


def check_fp8_device() -> None:
    """Refuses a GPU that has no products in 8 bits; warns where they are imitated."""
    if jax.default_backend() != "gpu":
        logger.warning("products in 8 bits are imitated on this device: the numbers are right, but it is slow")
    elif capability() < _LEAST_CAPABILITY:
        raise RefusedError(
            f"found trainer.quantization.fp8: true on a GPU of compute capability {capability()}; needed "
            f"{_LEAST_CAPABILITY} or more (Ada, Hopper). Remove the key."
        )


def with_fp8_products(model: Tree) -> Tree:
    """The model with the weights of its layers marked as those to be multiplied with in 8 bits."""
    marked: Tree = jax.tree_util.tree_map_with_path(
        lambda path, leaf: Fp8Weight(leaf) if _is_of_products(path_name(path)) else leaf, model, is_leaf=is_split
    )
    return marked


def _is_of_products(name: str) -> bool:
    """Whether a parameter is one that `linear` multiplies with; any other would fail as soon as it is used."""
    return name.startswith(("blocks.", "mlps.")) and name.rpartition(".")[2].startswith("w_")
