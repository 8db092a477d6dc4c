import queue

import pytest

from ponente.train.throughput import Throughput, peak_flops
from ponente.train.watchdog import Watchdog, WatchdogConfig


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_steps_are_timed_without_hooks_and_goodput_is_their_share() -> None:
    clock = Clock()
    throughput = Throughput(flops_per_token=50.0, peak=1000.0, clock=clock)
    clock.now = 10.0  # compiling
    throughput.start()
    throughput.loaded(0.5)
    clock.now = 12.0
    first = throughput.stepped(4, 20)
    assert first["throughput/duration"] == 2.0
    assert first["throughput/tokens_per_second"] == 10.0
    assert first["throughput/examples_per_second"] == 2.0
    assert first["throughput/loading_time"] == 0.5
    assert first["throughput/mfu"] == pytest.approx(100 * 10 * 50 / 1000)
    assert first["throughput/goodput"] == pytest.approx(2 / 12)
    throughput.hooked(3.0)
    clock.now = 16.0
    second = throughput.stepped(4, 20)
    assert second["throughput/duration"] == 1.0
    assert second["throughput/hook_time"] == 3.0
    assert second["throughput/loading_time"] == 0.0
    assert second["throughput/total_tokens"] == 40.0
    assert second["throughput/goodput"] == pytest.approx(3 / 16)


def test_a_device_without_a_known_peak_has_no_mfu() -> None:
    clock = Clock()
    throughput = Throughput(flops_per_token=1.0, peak=peak_flops("cpu"), clock=clock)
    clock.now = 1.0
    assert "throughput/mfu" not in throughput.stepped(1, 1)


@pytest.mark.parametrize(
    ("kind", "tera"), [("NVIDIA H200", 989.4), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0)]
)
def test_the_peak_of_known_devices(kind: str, tera: float) -> None:
    assert peak_flops(kind) == pytest.approx(tera * 1e12)


def test_a_watchdog_is_quiet_while_steps_end() -> None:
    clock, ended = Clock(), []
    watchdog = Watchdog(WatchdogConfig(step_timeout=1000.0, startup_timeout=2000.0), clock=clock, end=ended.append)
    clock.now = 1500.0
    watchdog.alive(0)
    clock.now = 2400.0
    watchdog.alive(1)
    watchdog.close()
    assert ended == []


def test_a_watchdog_ends_a_run_that_stands() -> None:
    clock, ended = Clock(), queue.Queue[int]()
    watchdog = Watchdog(WatchdogConfig(step_timeout=0.02), clock=clock, end=ended.put)
    clock.now = 1000.0  # no time is set for the start
    watchdog.alive(0)
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.1)
    clock.now = 1001.0
    assert ended.get(timeout=30) == 124
    watchdog.close()
