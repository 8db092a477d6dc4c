"""map_shards: every shard once, published whole, in order; a second call goes on where the first stopped."""

import itertools
import json
import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chores
import pytest

from ponente.cluster import map_shards
from ponente.cluster.context import Progress, StepContext, running_step
from ponente.cluster.workers import nursery_of
from ponente.config.errors import RefusedError
from ponente.store.formats import FormatError
from ponente.store.redaction import Redactor

WORDS = ["levante", "ponente", "bora"]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.mark.parametrize("workers", [0, 2])
def test_results_and_files_are_in_the_order_of_the_shards(workers: int, state: str) -> None:
    done = map_shards(chores.shout, WORDS, name="loud", suffix=".txt", state_path=state, workers=workers)
    assert done.values == ["l", "p", "b"]
    assert done.paths == [f"{state}/loud/{index:05d}.txt" for index in range(3)]
    assert [Path(path).read_text() for path in done.paths] == ["LEVANTE", "PONENTE", "BORA"]
    assert [shard.shard for shard in done.finished] == WORDS and done.quarantined == []


def test_a_function_without_a_path_gives_values_only(state: str) -> None:
    done = map_shards(chores.length, WORDS, state_path=state, workers=0)
    assert (done.values, done.paths) == ([7, 7, 4], [])


def test_a_shard_may_be_a_folder_or_nothing(state: str) -> None:
    folders = map_shards(chores.unfold, WORDS, name="letters", state_path=state, workers=0)
    assert sorted(path.name for path in Path(folders.paths[2]).iterdir()) == sorted("bora")
    assert map_shards(chores.keep_silent, WORDS, name="silent", state_path=state, workers=0).paths == []


def test_what_is_finished_is_not_done_again(state: str, tmp_path: Path) -> None:
    shards = [{"trace": str(tmp_path / "trace"), "name": name} for name in WORDS]
    map_shards(chores.leave_a_trace, shards, state_path=state, workers=0)
    map_shards(chores.leave_a_trace, shards, state_path=state, workers=0)
    assert sorted((tmp_path / "trace").read_text().split()) == sorted(WORDS)


def test_a_published_shard_that_somebody_removed_is_made_again(state: str) -> None:
    first = map_shards(chores.shout, WORDS, state_path=state, workers=0)
    Path(first.paths[1]).unlink()
    again = map_shards(chores.shout, WORDS, state_path=state, workers=0)
    assert [Path(path).read_text() for path in again.paths] == ["LEVANTE", "PONENTE", "BORA"]


def test_the_heaviest_shards_go_first(state: str, tmp_path: Path) -> None:
    shards = [{"trace": str(tmp_path / "trace"), "name": str(weight)} for weight in (3, 10, 1, 7)]
    map_shards(chores.leave_a_trace, shards, state_path=state, workers=0, weight=lambda shard: float(shard["name"]))
    assert (tmp_path / "trace").read_text().split() == ["10", "7", "3", "1"]


def test_shards_that_name_files_weigh_what_the_files_weigh(state: str, tmp_path: Path) -> None:
    for name, size in (("small", 1), ("large", 100), ("middle", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    shards = [str(tmp_path / name) for name in ("small", "large", "middle")]
    map_shards(chores.leave_a_trace_beside, shards, state_path=state, workers=0)
    assert (tmp_path / "trace").read_text().split() == ["large", "middle", "small"]


@pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
def test_a_name_that_is_no_folder_name_is_refused(name: str, state: str) -> None:
    with pytest.raises(ValueError, match="needed one name without slashes or a leading dot"):
        map_shards(chores.length, WORDS, name=name, state_path=state)


def test_shards_and_results_must_be_json(state: str) -> None:
    with pytest.raises(TypeError, match=r"shard 1 \(.*object.*\) is no JSON value"):
        map_shards(chores.length, ["a", object()], state_path=state, workers=0)
    with pytest.raises(RuntimeError, match="needed a small JSON value"):
        map_shards(chores.give_an_object, ["a"], state_path=state, workers=0, max_attempts=1)


def test_numbers_arrive_and_come_back_whole(state: str) -> None:
    shards = [[2**70, -math.inf, math.nan, -0.0, 1, 1.0, True]]
    for _ in range(2):  # made, then read back
        [value] = map_shards(chores.give_back, shards, state_path=state, workers=0).values
        assert list(map(repr, value)) == list(map(repr, shards[0]))


def test_a_changed_list_of_shards_under_one_state_is_refused(state: str) -> None:
    map_shards(chores.length, WORDS, state_path=state, workers=0)
    for changed in (["levante", "mistral", "bora"], ["levante", "ponente"]):
        with pytest.raises(ValueError, match=r"was made from shard .*; the list of shards changed under one identity"):
            map_shards(chores.length, changed, state_path=state, workers=0)
    assert map_shards(chores.length, [*WORDS, "more"], state_path=state, workers=0).values == [7, 7, 4, 4]


def test_no_step_and_no_state_path_is_refused() -> None:
    with pytest.raises(ValueError, match="found no running step to keep finished shards in; give state_path"):
        map_shards(chores.length, WORDS)


def test_no_shards_are_no_work(state: str) -> None:
    assert map_shards(chores.length, [], state_path=state).values == []


def test_a_record_of_a_newer_format_asks_for_an_upgrade(state: str) -> None:
    map_shards(chores.length, WORDS, state_path=state, workers=0)
    record = Path(state) / ".maps" / "shards" / "00001.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "format": 2, "shard": "?"}))
    with pytest.raises(FormatError, match=r"00001\.json has format 2; this version knows up to 1\. Upgrade"):
        map_shards(chores.length, WORDS, state_path=state, workers=0)


# -- inside a step


@pytest.fixture
def step(tmp_path: Path) -> Iterator[StepContext]:
    context = StepContext(
        name="s",
        output_path=str(tmp_path / "output"),
        state_path=str(tmp_path / "state"),
        redactor=Redactor(["planted-secret"]),
    )
    with running_step(context):
        yield context


def test_inside_a_step_files_lie_in_its_state_folder_and_the_commit_is_to_name_them(step: StepContext) -> None:
    done = map_shards(chores.shout, WORDS, name="loud", workers=0)
    assert done.paths[0] == f"{step.state_path}/loud/00000"
    map_shards(chores.length, WORDS, name="lengths", workers=0)
    assert step.state_objects == {"loud"}


def test_inside_a_step_progress_is_told(step: StepContext) -> None:
    told: list[Progress] = []
    step.publish_progress = told.append
    map_shards(chores.length, WORDS, name="lengths", workers=0)
    assert (told[0].done, told[0].total, told[0].unit) == (0, 3, "lengths")
    assert (told[-1].done, told[-1].total) == (3, 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_secrets_in_shards_are_not_stored_and_a_second_call_still_knows_them(step: StepContext, workers: int) -> None:
    shards: list[Any] = ["https://ann:planted@host/x", {"api_key": "planted"}, "data-planted-secret.txt"]
    for redactor in (step.redactor, Redactor()):  # the second time nobody knows the secret any more
        step.redactor = redactor
        step.maps.clear()  # another attempt
        done = map_shards(chores.give_back, shards, workers=workers)
        assert [shard.shard for shard in done.finished] == shards
    records = sorted((Path(step.state_path) / ".maps" / "shards").glob("*.json"))
    assert [json.loads(path.read_text())["shard"] for path in records] == [
        "https://***@host/x",
        {"api_key": "***"},
        "data-***.txt",
    ]


def test_two_maps_of_one_name_in_a_step_are_refused(state: str) -> None:
    with running_step(StepContext(name="s", output_path="/o", state_path=state)):
        map_shards(chores.length, WORDS, workers=0)
        with pytest.raises(ValueError, match=r"(?s)a second map called 'shards' in step 's'.*give each a name"):
            map_shards(chores.shout, WORDS, workers=0)
        assert map_shards(chores.shout, WORDS, name="loud", workers=0).values == ["l", "p", "b"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_that_speaks_to_the_user_is_not_tried_again_and_keeps_its_words(
    workers: int, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RefusedError) as caught:
        map_shards(chores.refuse_bora, WORDS, state_path=state, workers=workers)
    assert str(caught.value) == "found bora; needed another wind. Wait."
    assert "try 1" not in caplog.text


def test_a_users_error_within_the_budget_sets_the_shard_aside(state: str) -> None:
    done = map_shards(chores.refuse_bora, WORDS, state_path=state, workers=0, max_quarantined=1)
    assert done.values == ["levante", "ponente"]
    assert [shard.error for shard in done.quarantined] == ["found bora; needed another wind. Wait."]


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_of_all_shards_are_added_up(workers: int, state: str) -> None:
    seen: list[dict[str, int]] = []
    told = lambda counts: seen.append(dict(counts))  # noqa: E731
    map_shards(chores.count_letters, WORDS, state_path=state, workers=workers, on_counts=told)
    assert seen[-1] == {"letters": 18, "words": 3}
    assert all(before.get("letters", 0) <= after.get("letters", 0) for before, after in itertools.pairwise(seen))


def test_workers_of_a_nursery_share_what_it_prepared(state: str) -> None:
    with nursery_of("json") as nursery:
        assert nursery is not None
        nursery.prepare(chores.remember_a_wind)
        done = map_shards(chores.remembered_wind, WORDS, state_path=state, workers=2)
    assert done.values == ["tramontana"] * 3
    assert not multiprocessing.active_children()


def test_a_worker_of_a_nursery_that_is_killed_is_named_and_replaced(state: str) -> None:
    with nursery_of("json"), pytest.raises(RuntimeError, match="SIGKILL"):
        map_shards(chores.kill_myself_on_bora, WORDS, state_path=state, workers=2, max_attempts=1)


def test_without_its_nursery_a_pool_starts_workers_of_its_own(state: str) -> None:
    with nursery_of("json") as nursery:
        assert nursery is not None
        nursery.prepare(chores.kill_myself)
        done = map_shards(chores.shout, WORDS, state_path=state, workers=2)
    assert len(done.paths) == 3
