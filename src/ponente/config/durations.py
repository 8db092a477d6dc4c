"""Lengths of time as people write them: "15m", "30s", "1.5h", "2d", or a number of seconds."""

import re

from ponente.config.errors import RefusedError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|m|s)")


def seconds_of(duration: str | float | None, key: str) -> float | None:
    """The seconds of a length of time; None stays None.

    Args:
        key: where it was written, for the error.

    Example: `seconds_of("1h30m", "trainer.checkpointer.save_interval") == 5400`
    """
    if duration is None:
        return None
    if isinstance(duration, str):
        parts = _PART.findall(duration)
        if parts and "".join(_PART.split(duration)[::3]).strip() == "":
            duration = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if isinstance(duration, str) or duration <= 0:
        raise RefusedError(
            f"found {key}: {duration}; needed a length of time above 0, such as 30s, 15m, 1h30m, 7d or a number of "
            "seconds. Change it."
        )
    return float(duration)
