"""Batch sizes by step, and how many steps so many examples make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.batches.schedule import BatchSchedule, BatchStage
from ponente.config.errors import RefusedError


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    starts = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=4)))]
    return BatchSchedule.of([BatchStage(start=start, value=draw(st.integers(1, 9))) for start in starts])


@given(schedule=schedules())
def test_steps_follow_each_other_without_gap_or_overlap(schedule: BatchSchedule) -> None:
    for step in range(80):
        assert schedule.first_example(step + 1) == schedule.first_example(step) + schedule.size(step)


@given(schedule=schedules(), examples=st.integers(0, 700))
def test_the_steps_for_so_many_examples_are_the_fewest_that_do(schedule: BatchSchedule, examples: int) -> None:
    steps = schedule.steps_for(examples)
    assert schedule.first_example(steps) >= examples
    assert steps == 0 or schedule.first_example(steps - 1) < examples


def test_one_size_is_a_schedule() -> None:
    schedule = BatchSchedule.of(512)
    assert (schedule.size(10**9), schedule.first_example(10**9), schedule.largest) == (512, 512 * 10**9, 512)


@pytest.mark.parametrize("starts", [[], [1], [0, 5, 5], [0, 7, 3]])
def test_stages_that_leave_a_step_without_a_size_are_refused(starts: list[int]) -> None:
    with pytest.raises(RefusedError, match="needed the first at 0 and each later"):
        BatchSchedule.of([BatchStage(start=start, value=1) for start in starts])


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(RefusedError, match="found a batch size of 0; needed 1 or more"):
        BatchSchedule.of(0)
