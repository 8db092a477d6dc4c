"""Models as tests train them: their first weights, with connections over depth that have learnt."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ponente.models.connection_keys import ConnectedConfig
from ponente.models.lm import LmConfig
from ponente.models.parameters import initialize


def first_values(model: LmConfig, vocab_size: int) -> Any:
    """Of a model; where there are connections, those of one that has learnt, for at first these do nothing."""
    made: Any = initialize(model.parameters(vocab_size), 0)
    if not isinstance(model, ConnectedConfig):
        return made
    random = np.random.default_rng(0)
    learnt = jax.tree.map(lambda one: one + np.float32(random.normal(0, 0.1, one.shape)), made.connections)
    return replace(made, connections=learnt)
