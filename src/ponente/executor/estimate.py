"""What a step will take, and what that costs: estimates of step types against a rate card."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step will take; None where nobody knows.

    `device_hours` counts hours times devices of the kind `device` (by default the step's resources say which);
    `bytes` is data that moves; `cost` overrules the rate card.
    """

    tokens: float | None = None
    flops: float | None = None
    bytes: float | None = None
    device_hours: float | None = None
    device: str | None = None
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class RateCard:
    """Prices: of an hour of each device, and of a gigabyte that moves.

    As YAML:
        currency: USD
        device_hours: {cpu: 0.04, H200: 3.5, v4-128: 206.08}
        gigabyte: 0.02
    """

    currency: str = "USD"
    device_hours: dict[str, float] = field(default_factory=dict)
    gigabyte: float = 0.0

    def price(self, estimate: Estimate, device: str) -> float | None:
        """The cost of an estimate; None where a device-hour has no price or nothing is known."""
        if estimate.cost is not None:
            return estimate.cost
        if estimate.device_hours is None and estimate.bytes is None:
            return None
        cost = (estimate.bytes or 0.0) / 1e9 * self.gigabyte
        if estimate.device_hours:
            rate = self.device_hours.get(estimate.device or device)
            if rate is None:
                return None
            cost += estimate.device_hours * rate
        return cost
