"""The state of a run: what a checkpoint holds, and all that the next step depends on besides its batch.

In: the parameters of a model and an optimizer. Out: a tree of arrays, or the same arrays by name for the store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import DTypeLike

from ponente.models.parameters import initialize, path_name


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Step, weights, the optimizer's state and, where a run keeps one, the average of its weights."""

    step: Array  # how many updates were made
    model: Any
    optimizer: Any
    average: Any = None

    @property
    def evaluated(self) -> Any:
        """The weights that are evaluated and exported: the average, where there is one."""
        return self.model if self.average is None else self.average

    def restarted(self) -> "TrainState":
        """The same state at step 0, where the learning rate begins anew."""

        def reset(part: Any) -> Any:
            return part._replace(count=jnp.zeros_like(part.count)) if _is_schedule(part) else part

        optimizer = jax.tree.map(reset, self.optimizer, is_leaf=_is_schedule)
        return replace(self, step=jnp.zeros_like(self.step), optimizer=optimizer)


def _is_schedule(part: Any) -> bool:
    return isinstance(part, optax.ScaleByScheduleState)


def first_state(
    parameters: Any, optimizer: optax.GradientTransformation, seed: int, dtype: DTypeLike, *, is_averaged: bool
) -> TrainState:
    """The state before the first step; may be traced, for its shapes alone."""
    return state_of(initialize(parameters, seed, dtype), optimizer, is_averaged=is_averaged)


def state_of(model: Any, optimizer: optax.GradientTransformation, *, is_averaged: bool) -> TrainState:
    """The state of a run that begins with these weights."""
    average = jax.tree.map(jnp.copy, model) if is_averaged else None
    return TrainState(step=jnp.zeros((), jnp.int32), model=model, optimizer=optimizer.init(model), average=average)


def named_arrays(state: Any) -> dict[str, Array]:
    """The arrays of a tree by name: `model.blocks.attention.w_q_DNH`, `optimizer.1.mu.embed_VD`, `step`."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}


def with_arrays(state: Any, arrays: Mapping[str, Array]) -> Any:
    """The tree with these arrays in their places; others stay."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: arrays.get(path_name(path), leaf), state)
