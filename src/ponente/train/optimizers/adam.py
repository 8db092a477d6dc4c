"""AdamW (Loshchilov and Hutter 2019)."""

from dataclasses import dataclass
from typing import Any

import optax

from ponente.train.optimizers.config import OptimizerConfig


@OptimizerConfig.register_subclass("adam")
@dataclass(frozen=True, kw_only=True)
class AdamConfig(OptimizerConfig):
    """Adam with decoupled weight decay."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    nesterov: bool = False

    def direction(self, parameters: Any) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon, nesterov=self.nesterov)
