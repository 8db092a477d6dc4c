"""Muon (Jordan et al. 2024): momentum made orthogonal, for matrices within the model; AdamW for all else.

Embeddings, head, norms and biases are AdamW's. A matrix maps the width to something or back; its other axes count as
one (heads and their sizes), and each layer of a stack is a matrix of its own. Newton-Schulz is in the gradients' type.
"""

from dataclasses import dataclass, fields
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from ponente.models.parameters import LAYERS, Parameter, is_parameter
from ponente.train.optimizers.adam import AdamConfig
from ponente.train.optimizers.config import OptimizerConfig, is_matrix

WITHIN, OTHER = "within", "other"  # who updates a parameter: Muon, or AdamW
MASKED = optax.MaskedNode()  # stands for the others where Muon looks
KIMI_RMS = 0.2  # of an update, about what AdamW's have (Liu et al. 2025)


@OptimizerConfig.register_subclass("muon")
@dataclass(frozen=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Muon, and the AdamW beside it. The schedule is of both learning rates, and clipping of all gradients together."""

    learning_rate: float = 0.02  # with use_kimi_scaling, one that suits AdamW
    weight_decay: float = 0.0
    momentum: float = 0.95
    nesterov: bool = True
    backend_steps: int = 5  # of Newton-Schulz
    muon_epsilon: float = 1e-8
    use_kimi_scaling: bool = False  # updates of one size whatever the shape, and not sqrt(out / in) above 1
    adam_lr: float = 6e-4
    adam_weight_decay: float | None = None  # None: as weight_decay
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8

    def unclipped(self, parameters: Any, num_train_steps: int) -> optax.GradientTransformation:
        updaters = {
            WITHIN: super().unclipped(parameters, num_train_steps),
            OTHER: self._adam().unclipped(parameters, num_train_steps),
        }
        return optax.partition(updaters, _of_each(parameters, lambda one: WITHIN if is_within(one) else OTHER))

    def direction(self, parameters: Any) -> optax.GradientTransformation:
        """Of the matrices within; all other parameters are masked."""
        orthogonal = scale_by_muon(
            ns_steps=self.backend_steps,
            beta=self.momentum,
            eps=self.muon_epsilon,
            nesterov=self.nesterov,
            weight_dimension_numbers=_of_each(parameters, lambda one: sides(one) if is_within(one) else MASKED),
        )
        scales = _of_each(parameters, lambda one: self._scale(one) if is_within(one) else MASKED)
        scaled = optax.stateless(lambda updates, _: jax.tree.map(lambda update, by: update * by, updates, scales))
        return optax.chain(orthogonal, scaled)

    def _scale(self, parameter: Parameter) -> float:
        """What an orthogonal update is multiplied by."""
        into, out = (_size(parameter, side) for side in sides(parameter))
        scale: float = KIMI_RMS * max(into, out) ** 0.5 if self.use_kimi_scaling else max(1.0, out / into) ** 0.5
        return scale

    def _adam(self) -> AdamConfig:
        shared = {field.name: getattr(self, field.name) for field in fields(OptimizerConfig)}
        decay = self.weight_decay if self.adam_weight_decay is None else self.adam_weight_decay
        own = {"learning_rate": self.adam_lr, "weight_decay": decay}
        return AdamConfig(**(shared | own), beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)


def is_within(parameter: Parameter) -> bool:
    """Whether it is a matrix between hidden states: neither is looked up by token or position, nor makes logits."""
    return is_matrix(parameter) and "embed" in parameter.axes and not {"vocab", "position"} & set(parameter.axes)


def sides(parameter: Parameter) -> MuonDimensionNumbers:
    """Which axes go in and which come out. The layers are on neither side, and so apart.

    Example: 1 and (2, 3) of [layers, embed, heads, head_size]; (1, 2) and 3 of [layers, heads, head_size, embed]
    """
    own = [number for number, axis in enumerate(parameter.axes) if axis != LAYERS]
    width = parameter.axes.index("embed")
    others = tuple(number for number in own if number != width)
    return MuonDimensionNumbers((width,), others) if width == own[0] else MuonDimensionNumbers(others, (width,))


def _size(parameter: Parameter, side: Any) -> int:
    size = 1
    for axis in side:
        size *= parameter.shape[axis]
    return size


def _of_each(parameters: Any, what: Any) -> Any:
    return jax.tree.map(what, parameters, is_leaf=is_parameter)
