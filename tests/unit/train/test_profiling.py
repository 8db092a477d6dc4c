from typing import Any

import pytest

from ponente.train.profiling import Profiler, ProfilerConfig


@pytest.mark.parametrize(("first", "expected"), [(0, (3, 4)), (10, (10, 11))])
def test_the_steps_that_are_profiled(first: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    profiled: list[int] = []
    links: list[bool] = []
    is_on = False

    def start(folder: str, *, create_perfetto_link: bool) -> None:
        nonlocal is_on
        is_on = True
        links.append(create_perfetto_link)

    def stop() -> None:
        nonlocal is_on
        is_on = False

    monkeypatch.setattr("jax.profiler.start_trace", start)
    monkeypatch.setattr("jax.profiler.stop_trace", stop)
    config = ProfilerConfig(enabled=True, start_step=3, num_steps=2, perfetto_link=True)
    profiler = Profiler(config, "folder", first)
    for step in range(first, first + 8):
        profiler.before(step)
        if is_on:
            profiled.append(step)
        if profiler.is_last(step):
            profiler.stop()
    assert tuple(profiled) == expected
    assert links == [True]


def test_nothing_is_profiled_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("jax.profiler.start_trace", refuse)
    profiler = Profiler(ProfilerConfig(start_step=0), "folder", 0)
    for step in range(3):
        profiler.before(step)
        assert not profiler.is_last(step)
    profiler.stop()
