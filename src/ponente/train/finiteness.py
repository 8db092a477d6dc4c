"""Stopping a run whose numbers are lost: what is not finite, since which step, in which parameters."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ponente.config.errors import UserError
from ponente.models.parameters import path_name
from ponente.train.norms import Squares

_NAMED = 5


class NotFiniteError(UserError):
    """A loss or gradient became NaN or infinite."""


def check_finite(
    step: int, loss: float, grad_norm: float, squares: Squares, model: Any, *, stops_at_nan: bool, stops_at_inf: bool
) -> None:
    """Raises if a step's numbers are of a kind that stops the run.

    Args:
        squares: of gradients by the parameters of `model`.
        model: the weights now, a step or so later; looked at only when something is wrong.
    """
    found = [
        f"{name} {value}"
        for name, value in (("loss", loss), ("gradient norm", grad_norm))
        if (stops_at_nan and math.isnan(value)) or (stops_at_inf and math.isinf(value))
    ]
    if not found:
        return
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    names = [path_name(path) for path, _ in leaves]
    by_name = squares.by_name()
    gradients = [name for name in names if not np.isfinite(by_name[name]).all()]
    are_finite = jax.jit(lambda leaf: jnp.isfinite(leaf).all())  # on devices: another process may hold a part
    weights = [name for name, (_, leaf) in zip(names, leaves, strict=True) if not bool(are_finite(leaf))]
    raise NotFiniteError(
        f"found {' and '.join(found)} at step {step}; gradients not finite: {_listed(gradients, len(names))}; weights "
        f"not finite by now: {_listed(weights, len(names))}; needed finite numbers. What was "
        "saved is from before: lower optimizer.learning_rate or raise its warmup, look at the batch (ponente data "
        f"inspect --step {step}), or set trainer.crash_on_nan (crash_on_inf): false to go on."
    )


def _listed(names: list[str], of: int) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more} ({len(names)} of {of})"
