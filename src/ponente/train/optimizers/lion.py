"""Lion (Chen et al. 2023)."""

from dataclasses import dataclass
from typing import Any

import optax

from ponente.train.optimizers.config import OptimizerConfig


@OptimizerConfig.register_subclass("lion")
@dataclass(frozen=True, kw_only=True)
class LionConfig(OptimizerConfig):
    """The sign of a blend of gradient and momentum."""

    beta1: float = 0.9
    beta2: float = 0.99

    def direction(self, parameters: Any) -> optax.GradientTransformation:
        return optax.scale_by_lion(self.beta1, self.beta2)
