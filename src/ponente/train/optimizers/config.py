"""What all optimizers share: the schedule, clipping, and which parameters decay."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import draccus
import jax
import jax.numpy as jnp
import optax

from ponente.config.errors import RefusedError
from ponente.models.parameters import LAYERS, Parameter, is_parameter, path_name
from ponente.train.norms import norm, squares
from ponente.train.optimizers.schedules import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ScheduleConfig, draccus.ChoiceRegistry):
    """An optimizer. Register your own: `@OptimizerConfig.register_subclass("mine")` on a frozen dataclass."""

    weight_decay: float = 0.1
    max_grad_norm: float | None = 1.0
    weight_decay_modules: str | list[str] | None = None  # a regular expression, or parts of paths
    default_weight_decay_mask: bool | None = None  # None: yes, where no modules are named

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "adam"

    def check(self) -> None:
        """Refuses numbers that make no sense."""
        super().check()
        if self.weight_decay < 0:
            raise RefusedError(f"found optimizer.weight_decay: {self.weight_decay}; needed 0 or more. Change it.")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise RefusedError(
                f"found optimizer.max_grad_norm: {self.max_grad_norm}; needed more than 0, or null for no clipping. "
                "Change it."
            )

    def build(self, parameters: Any, num_train_steps: int) -> optax.GradientTransformation:
        """The whole transformation: clipping, the optimizer's own part, decay, and the learning rate of the step.

        Args:
            parameters: the tree of `Parameter`s of the model that is trained.
        """
        unclipped = self.unclipped(parameters, num_train_steps)
        if self.max_grad_norm is None:
            return unclipped
        return optax.chain(_clip(self.max_grad_norm), unclipped)

    def unclipped(self, parameters: Any, num_train_steps: int) -> optax.GradientTransformation:
        """All of it but the clipping."""
        parts = [self.direction(parameters)]
        if self.weight_decay:
            parts.append(optax.add_decayed_weights(self.weight_decay, self.decayed(parameters)))
        parts.append(optax.scale_by_learning_rate(self.learning_rates(num_train_steps)))
        return optax.chain(*parts)

    @abstractmethod
    def direction(self, parameters: Any) -> optax.GradientTransformation:
        """Gradients to directions of descent, before decay and learning rate."""

    def decayed(self, parameters: Any) -> Any:
        """A tree that says of each parameter whether it decays."""
        return jax.tree_util.tree_map_with_path(
            lambda path, parameter: self._decays(path_name(path), parameter), parameters, is_leaf=is_parameter
        )

    def _decays(self, name: str, parameter: Parameter) -> bool:
        modules, by_default = self.weight_decay_modules, self.default_weight_decay_mask
        if modules is None and by_default is False:
            return True
        if isinstance(modules, str) and re.match(modules, name):
            return True
        if isinstance(modules, list) and any(part in name for part in modules):
            return True
        uses_default = by_default is True or (by_default is None and modules is None)
        return uses_default and is_matrix(parameter) and not is_embedding(parameter)


def is_matrix(parameter: Parameter) -> bool:
    """Whether a parameter maps one thing to another: no bias and no weight of a norm."""
    own = [axis for axis in parameter.axes if axis != LAYERS]
    return len(own) > 1 and not {"embed", "inner"}.isdisjoint(own)


def is_embedding(parameter: Parameter) -> bool:
    """Whether its rows are looked up."""
    return parameter.axes[0] in ("vocab", "position")


def _clip(most: float) -> optax.GradientTransformation:
    """Gradients of a greater norm than `most`, all together, scaled down to it.

    Optax divides by the norm, and XLA makes a copy of all gradients for that; a product it takes into their next use.
    """

    def update(gradients: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        factor = most / jnp.maximum(norm(squares(gradients)), most)
        return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
