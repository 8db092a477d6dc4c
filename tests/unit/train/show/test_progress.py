"""Progress as one line of text."""

import math

import pytest

from ponente.train.show import Progress
from ponente.train.show.progress import short_count, short_duration


def test_a_line_says_all_that_is_known() -> None:
    progress = Progress(
        step=1234,
        steps=10_000,
        loss=3.2141,
        tokens_per_second=12_345,
        mfu=0.412,
        seconds_left=3725,
        next_checkpoint_seconds=240,
        note="evaluating",
    )
    assert str(progress) == (
        "step 1,234/10,000 · loss 3.214 · 12.3k tok/s · MFU 41% · ETA 1h 02m · next checkpoint 4m · evaluating"
    )


def test_a_narrow_terminal_gets_shorter_words() -> None:
    progress = Progress(step=1, steps=5, tokens_per_second=12_345, next_checkpoint_seconds=240)
    assert progress.within(80) == str(progress) == "step 1/5 · 12.3k tok/s · next checkpoint 4m"
    assert progress.within(40) == "step 1/5 · 12.3k/s · ckpt 4m"


def test_what_is_not_known_is_left_out() -> None:
    assert str(Progress(step=0, steps=5)) == "step 0/5"
    assert str(Progress(step=1, steps=5, loss=math.nan)) == "step 1/5 · loss nan"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0.4, "0"),
        (999, "999"),
        (999.7, "1.00k"),
        (1234, "1.23k"),
        (12_345, "12.3k"),
        (99_960, "100k"),
        (1.5e6, "1.50M"),
    ],
)
def test_counts_have_three_digits(count: float, text: str) -> None:
    assert short_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (59.4, "59s"), (59.6, "1m"), (65, "1m 05s"), (600, "10m"), (3599, "1h 00m"), (3725, "1h 02m")),
        *((86_399, "1d 00h"), (183_600, "2d 03h"), (-3, "0s")),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text
