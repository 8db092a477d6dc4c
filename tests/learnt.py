"""Models as tests train them: their first weights, with connections over depth that have learnt."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ponente.models.connection_keys import ConnectedConfig
from ponente.models.connections import Connection
from ponente.models.lm import LmConfig
from ponente.models.parameters import initialize

SPREAD = 0.03


def first_values(model: LmConfig, vocab_size: int) -> Any:
    """Of a model; where there are connections, those of one that has learnt, for at first these do nothing.

    They weigh all states: where weights nearly cancel, a norm behind them makes a small error a large one.
    """
    made: Any = initialize(model.parameters(vocab_size), 0)
    if not isinstance(model, ConnectedConfig):
        return made
    random = np.random.default_rng(0)
    learnt = jax.tree.map(lambda one: one + np.float32(random.normal(0, SPREAD, one.shape)), made.connections)
    return replace(made, connections=tuple(map(_weighing_all, learnt)))


def _weighing_all(connection: Connection) -> Connection:
    static = connection.static_CM
    return connection if static is None else replace(connection, static_CM=static + np.float32(1 / static.shape[-1]))
