from typing import Any

import pytest

from ponente.config.durations import seconds_of
from ponente.config.errors import RefusedError


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("15m", 900), ("30s", 30), ("1h", 3600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), (7, 7), (0.5, 0.5)],
)
def test_lengths_of_time_are_read_as_people_write_them(duration: Any, seconds: float) -> None:
    assert seconds_of(duration, "key") == seconds


def test_none_stays_none() -> None:
    assert seconds_of(None, "key") is None


@pytest.mark.parametrize("duration", ["", "m", "15", "15x", "x15m", "15m!", 0, -1, "0s"])
def test_what_is_no_length_of_time_is_refused_with_its_key(duration: Any) -> None:
    with pytest.raises(RefusedError, match=r"found the\.key: .* needed a length of time"):
        seconds_of(duration, "the.key")
