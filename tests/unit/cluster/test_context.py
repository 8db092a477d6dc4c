"""The running step, as code inside it sees it."""

import threading

from ponente.cluster import report_progress
from ponente.cluster.context import Progress, StepContext, current_step, running_step


def test_outside_a_step_there_is_none_and_progress_goes_nowhere() -> None:
    assert current_step() is None
    report_progress(1, 2)


def test_progress_of_a_step_is_published_as_it_was_told() -> None:
    published: list[Progress] = []
    context = StepContext(name="s", output_path="/o", state_path="/s", publish_progress=published.append)
    with running_step(context):
        assert current_step() is context
        report_progress(1, 2, unit="shards", note="so far")
        report_progress(2)
    assert current_step() is None
    assert [(one.done, one.total, one.unit, one.note) for one in published] == [
        (1, 2, "shards", "so far"),
        (2, 0, "", ""),
    ]


def test_what_is_left_is_reckoned_from_this_attempts_own_work() -> None:
    fresh = Progress(done=5, total=20, unit="shards", seconds=5.0)
    resumed = Progress(done=9, total=20, unit="shards", seconds=4.0, before=5)
    assert str(fresh) == "5/20 shards, 15 s left"
    assert str(resumed) == "9/20 shards, 11 s left"
    assert str(Progress(done=5, total=20, before=5)) == "5/20"


def test_what_was_done_before_is_what_an_attempt_tells_first() -> None:
    published: list[Progress] = []
    context = StepContext(name="s", output_path="/o", state_path="/s", publish_progress=published.append)
    with running_step(context):
        report_progress(90, 100, unit="steps")
        report_progress(91, 100, unit="steps")
        report_progress(1, 3, unit="files")
    assert [one.before for one in published] == [90, 90, 1]
    assert 0 <= published[0].seconds <= published[1].seconds


def test_steps_in_threads_do_not_see_each_other() -> None:
    seen: list[object] = []
    with running_step(StepContext(name="s", output_path="/o", state_path="/s")):
        thread = threading.Thread(target=lambda: seen.append(current_step()))
        thread.start()
        thread.join()
    assert seen == [None]
