"""The rate card as people write it: a YAML file of prices."""

import math
from typing import Any

import yaml

from ponente.config.errors import RefusedError
from ponente.executor.estimate import RateCard
from ponente.store.paths import absolute
from ponente.store.volume import volume_of


def load_rate_card(path: str) -> RateCard:
    """The rate card in a YAML file."""
    place = absolute(path)
    try:
        raw: Any = yaml.safe_load(volume_of(place).read(place))
    except (FileNotFoundError, IsADirectoryError):
        raise RefusedError(
            f"found no rate card at {place}; give a YAML file with device_hours: {{cpu: 0.04}}"
        ) from None
    except yaml.YAMLError as error:
        raise RefusedError(f"rate card {place} is not YAML: {error}") from error
    known = {"currency", "device_hours", "gigabyte"}
    if not isinstance(raw, dict) or set(raw) - known:
        found = ", ".join(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__
        raise RefusedError(
            f"rate card {place}: found {found}; needed a mapping with keys among {', '.join(sorted(known))}"
        )
    prices = raw.get("device_hours") or {}
    if not isinstance(prices, dict):
        raise RefusedError(
            f"rate card {place}: found device_hours: {prices!r}; needed a price by device: {{cpu: 0.04}}"
        )
    for name, price in {**prices, "gigabyte": raw.get("gigabyte", 0.0)}.items():
        if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price < math.inf:
            raise RefusedError(f"rate card {place}: found {name}: {price!r}; needed a price, a number not below 0")
    return RateCard(
        currency=str(raw.get("currency", "USD")),
        device_hours={str(name): float(price) for name, price in prices.items()},
        gigabyte=float(raw.get("gigabyte", 0.0)),
    )
