"""What the processes of a run agree on after each step: whether to stop, and whether it is time to save.

A signal may reach one of them alone, and each has its own clock; but all must save the same step, or none can.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ponente.cluster.gang import Gang


@dataclass(kw_only=True)
class Agreement:
    """After `after(step)`, the same in all processes."""

    gang: Gang
    asked_to_stop: threading.Event
    wants_to_save: Callable[[], bool]
    stops: bool = False  # one was asked to
    saves: bool = False  # it is time for all

    def after(self, step: int) -> None:
        """Returns when all processes have come to this step."""
        told = self.gang.gather(f"after step {step}", [self.asked_to_stop.is_set(), self.wants_to_save()])
        self.stops = any(stops for stops, _ in told)
        self.saves = all(saves for _, saves in told)
