"""Several trackers as one, and trackers in the background: what fails or blocks harms nobody else."""

import logging
import threading
import time
from typing import Any

import pytest

from ponente.train.trackers import in_background, several

WARNINGS = logging.WARNING


def fail_always(step: int) -> None:
    raise ConnectionError("no route to host")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= WARNINGS]


def test_each_of_several_is_told_everything(make_memory: Any) -> None:
    trackers = [make_memory(), make_memory()]
    both = several(trackers)
    both.log({"train/loss": 1.0}, 3)
    both.log_summary({"parameter_count": 7})
    both.flush()
    both.finish()
    for tracker in trackers:
        assert tracker.logged == [(3, {"train/loss": 1.0})]
        assert tracker.summary == {"parameter_count": 7}
        assert tracker.flushed == [1]
        assert tracker.is_finished


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(
    make_memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_in_two_ways(step: int) -> None:
        if step == 4:
            raise ValueError("odd")
        if step in (1, 2):
            raise ConnectionError("no route to host")

    shaky, sound = make_memory("shaky", fail_in_two_ways), make_memory("sound")
    both = several([shaky, sound])
    for step in range(6):
        both.log({"train/loss": 1.0}, step)
    both.finish()
    assert sound.steps == [0, 1, 2, 3, 4, 5]
    assert shaky.steps == [0, 3, 5]
    found = warnings_of(caplog)
    assert len(found) == 2 and all("shaky" in text for text in found)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ConnectionError, ValueError]


def test_a_tracker_that_only_fails_is_switched_off_but_still_ends(
    make_memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def fail(step: int) -> None:
        tried.append(step)
        fail_always(step)

    broken = make_memory("broken", fail)
    tracker = several([broken])
    for step in range(100):
        tracker.log({"train/loss": 1.0}, step)
    tracker.finish()
    assert len(tried) < 50
    assert "off" in warnings_of(caplog)[-1]
    assert broken.is_finished


@pytest.mark.timeout(30)
def test_a_tracker_that_blocks_blocks_neither_training_nor_others(
    make_memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    stuck, sound = make_memory("stuck", lambda step: gate.wait(25)), make_memory("sound")
    both = several([in_background(stuck, capacity=10, limit_seconds=0.2), in_background(sound)])
    start = time.monotonic()
    for step in range(1000):
        both.log({"train/loss": 1.0}, step)
    both.finish()
    assert time.monotonic() - start < 10
    assert sound.steps == list(range(1000))
    assert stuck.steps == []
    gate.set()
    found = " ".join(warnings_of(caplog))
    assert "stuck is too slow" in found and "stuck is not done after" in found and "sound" not in found


def test_finish_waits_until_all_was_told(make_memory: Any) -> None:
    slow = make_memory("slow", lambda step: time.sleep(0.005))
    tracker = in_background(slow)
    for step in range(50):
        tracker.log({"train/loss": 1.0}, step)
    tracker.log_summary({"parameter_count": 7})
    tracker.finish()
    assert slow.steps == list(range(50))
    assert slow.summary == {"parameter_count": 7}
    assert slow.is_finished


def test_finish_may_be_called_twice(make_memory: Any) -> None:
    ended = []
    memory = make_memory()
    memory.finish = lambda: ended.append(1)
    tracker = in_background(memory)
    tracker.finish()
    tracker.finish()
    assert ended == [1]


def test_flush_in_the_background_waits_for_what_was_told_before(make_memory: Any) -> None:
    slow = make_memory("slow", lambda step: time.sleep(0.005))
    tracker = in_background(slow)
    for step in range(20):
        tracker.log({"train/loss": 1.0}, step)
    tracker.flush()
    assert slow.flushed == [20]
    tracker.finish()


def test_metrics_may_be_changed_after_they_were_told(make_memory: Any) -> None:
    gate = threading.Event()
    memory = make_memory("memory", lambda step: gate.wait(5))
    tracker = in_background(memory)
    metrics = {"train/loss": 1.0}
    tracker.log(metrics, 0)
    metrics["train/loss"] = 2.0
    tracker.log(metrics, 1)
    gate.set()
    tracker.finish()
    assert memory.logged == [(0, {"train/loss": 1.0}), (1, {"train/loss": 2.0})]


def test_a_tracker_that_fails_in_the_background_is_a_warning(
    make_memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = in_background(make_memory("broken", fail_always))
    for step in range(3):
        tracker.log({"train/loss": 1.0}, step)
    tracker.finish()
    assert len(warnings_of(caplog)) == 1 and "broken" in warnings_of(caplog)[0]


@pytest.mark.timeout(30)
def test_what_was_told_is_flushed_when_nothing_more_comes(make_memory: Any) -> None:
    memory = make_memory()
    tracker = in_background(memory, idle_seconds=0.1)
    tracker.log({"train/loss": 1.0}, 0)
    while not memory.flushed:
        time.sleep(0.05)
    assert memory.flushed == [1]
    tracker.finish()
