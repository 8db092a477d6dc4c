"""How fast a run is: tokens a second, the share of the device's peak (MFU), and of wall time that went into steps.

MFU = tokens/s · operations a token (`LmConfig.flops_per_token`: 6 for each weight of a matrix, and causal attention at
half the square) / (devices · peak of one). Time in evaluation, saving and export is taken out of steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_TERA = 1e12
_PEAKS = (  # dense bfloat16, by a part of the device's name; the first that is found counts
    ("h200", 989.4 * _TERA),
    ("h100 pcie", 756.0 * _TERA),
    ("h100", 989.4 * _TERA),
    ("h800", 989.4 * _TERA),
    ("gb200", 2500.0 * _TERA),
    ("b200", 2250.0 * _TERA),
    ("a100", 312.0 * _TERA),
    ("l40s", 362.0 * _TERA),
    ("a10g", 70.0 * _TERA),
    ("rtx 4090", 165.2 * _TERA),
    ("v100", 125.0 * _TERA),
    ("tpu v6", 918.0 * _TERA),
    ("tpu v5p", 459.0 * _TERA),
    ("tpu v5", 197.0 * _TERA),
    ("tpu v4", 275.0 * _TERA),
)


def peak_flops(device_kind: str, devices: int = 1) -> float | None:
    """Operations a second that so many devices could do at most; None where it is not known, as for CPUs."""
    name = device_kind.lower()
    return next((peak * devices for part, peak in _PEAKS if part in name), None)


@dataclass(kw_only=True)
class Throughput:
    """Measures steps as they end."""

    flops_per_token: float
    peak: float | None  # of all devices together
    clock: Callable[[], float] = time.monotonic
    total_tokens: int = 0
    _began: float = field(init=False)
    _last: float = field(init=False)
    _hooks: float = 0.0  # since the last step ended
    _loading: float = 0.0
    _in_steps: float = 0.0

    def __post_init__(self) -> None:
        self._began = self._last = self.clock()

    def loaded(self, seconds: float) -> None:
        """The next batch was waited for so long."""
        self._loading += seconds

    def hooked(self, seconds: float) -> None:
        """Something else than steps took so long."""
        self._hooks += seconds

    def start(self) -> None:
        """Time so far was preparation: it counts as wall time, not as a step."""
        self._last = self.clock()

    def stepped(self, examples: int, tokens: int) -> dict[str, float]:
        """A step has ended; its metrics."""
        now = self.clock()
        seconds = max(now - self._last - self._hooks, 1e-9)
        self._in_steps += seconds
        self.total_tokens += tokens
        rate = tokens / seconds
        metrics = {
            "throughput/duration": seconds,
            "throughput/tokens_per_second": rate,
            "throughput/examples_per_second": examples / seconds,
            "throughput/total_tokens": float(self.total_tokens),
            "throughput/loading_time": self._loading,
            "throughput/hook_time": self._hooks,
            "throughput/goodput": self._in_steps / max(now - self._began, 1e-9),
        }
        if self.peak is not None:
            metrics["throughput/mfu"] = 100 * rate * self.flops_per_token / self.peak
        self._last, self._hooks, self._loading = now, 0.0, 0.0
        return metrics
