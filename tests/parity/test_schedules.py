"""Learning rates against Levanter's: levanter_schedules.json holds what marin-levanter 0.2.20.dev202606180959 gives.

It was made by calling `AdamConfig(learning_rate=1e-3, **config).lr_scheduler(1000)` for each variant.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ponente.train.optimizers import AdamConfig
from ponente.train.optimizers.schedules import DecayConfig

STORED = json.loads((Path(__file__).parent / "levanter_schedules.json").read_text())


def config_of(given: dict[str, Any]) -> AdamConfig:
    shape = given.get("lr_schedule")
    if isinstance(shape, dict):
        kind = DecayConfig.get_choice_class(shape["type"])
        given = {**given, "lr_schedule": kind(**{key: value for key, value in shape.items() if key != "type"})}
    return AdamConfig(learning_rate=1e-3, **given)


@pytest.mark.parametrize("name", STORED["variants"])
def test_learning_rates_are_levanters(name: str) -> None:
    variant = STORED["variants"][name]
    rates = config_of(variant["config"]).learning_rates(1000)
    found = [float(jax.jit(rates)(step)) for step in STORED["steps"]]
    np.testing.assert_allclose(found, variant["rates"], rtol=2e-5, atol=1e-10)
