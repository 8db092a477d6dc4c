"""A step's folder: where things lie, what of a result is gone, and what may be written once."""

import json
from pathlib import Path

import pytest

from ponente.cluster.context import Progress
from ponente.executor.claim import take_claim
from ponente.executor.records import Commit, PayloadRecord, StepFolder
from ponente.store.volume import volume_of


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, prefix: str) -> StepFolder:
    """The folder of one step, on each kind of volume in turn."""
    place = prefix if request.param == "local" else str(request.getfixturevalue("memory_prefix"))
    return StepFolder(place, "data/raw-01234567")


def commit(folder: StepFolder, **fields: object) -> Commit:
    output = folder.from_prefix(folder.output(1))
    return Commit(identity="x", output=output, run="r", time=0.0, **fields)  # type: ignore[arg-type]


def write(path: str) -> None:
    volume_of(path).create(path, b"x")


def test_places_are_stored_from_the_prefix_and_found_below_it(folder: StepFolder) -> None:
    made = commit(folder, objects={"counts": folder.from_prefix(f"{folder.path}/state/counts")})
    assert made.output == "data/raw-01234567/output-1"
    assert made.objects == {"counts": "data/raw-01234567/state/counts"}
    assert folder.place(made) == f"{folder.path}/output-1"
    assert folder.place(made, "a/b") == f"{folder.path}/output-1/a/b"
    assert folder.place(made, "counts") == f"{folder.path}/state/counts"
    assert folder.place(made, "counts/0.txt") == f"{folder.path}/state/counts/0.txt"
    assert folder.place(made, "counts-of-others") == f"{folder.path}/output-1/counts-of-others"


def test_a_place_outside_the_prefix_is_stored_whole(folder: StepFolder, tmp_path: Path) -> None:
    outside = str(tmp_path / "elsewhere")
    assert folder.from_prefix(outside) == outside and folder.absolute(outside) == outside
    beside = f"{folder.prefix}-beside/x"
    assert folder.from_prefix(beside) == beside and folder.absolute(beside) == beside


def test_what_is_gone_of_a_result_is_told(folder: StepFolder) -> None:
    made = commit(folder, counts={folder.from_prefix(folder.output(1)): 2})
    assert folder.missing(made) == f"2 of the 2 files in {folder.output(1)} are gone"
    for name in ("a", "b", ".record"):
        write(f"{folder.output(1)}/{name}")
    assert folder.missing(made) is None
    volume_of(folder.path).remove(f"{folder.output(1)}/a")
    assert folder.missing(made) == f"1 of the 2 files in {folder.output(1)} are gone"


def test_a_payload_is_stored_once(folder: StepFolder) -> None:
    assert folder.payload_record() is None
    first = PayloadRecord(identity="x", payload={"big": 2**70}, run="first", time=1.0, description="d")
    folder.write_payload(first)
    folder.write_payload(PayloadRecord(identity="y", payload={}, run="second", time=2.0))
    assert folder.payload_record() == first


def test_events_are_kept_in_order(folder: StepFolder) -> None:
    assert folder.events() == []
    for number in range(5):
        folder.record_event("tick", {"number": number})
    assert [(event["kind"], event["number"], event["format"]) for event in folder.events()] == [
        ("tick", number, 1) for number in range(5)
    ]


def test_progress_is_the_last_that_was_told_and_damage_is_no_progress(folder: StepFolder) -> None:
    assert folder.progress() is None
    folder.write_progress(Progress(done=1, total=3))
    folder.write_progress(Progress(done=2, total=3, note="n"))
    assert folder.progress() == Progress(done=2, total=3, note="n")
    volume_of(folder.path).replace(f"{folder.path}/.progress.json", b"{")
    assert folder.progress() is None


def test_the_commit_in_force_is_the_last_whatever_came_after(folder: StepFolder) -> None:
    assert folder.last_commit(folder.view()) is None
    for number, run in enumerate(["first", "second"]):
        made = Commit(identity="x", output="o", run=run, time=0.0)
        assert folder.append(number, made)
    assert take_claim(folder, 2, "later") is not None
    view = folder.view()
    found = folder.last_commit(view)
    assert view.number == 3 and found is not None and found.run == "second"


def test_entries_are_plain_json_that_says_what_it_is(folder: StepFolder) -> None:
    folder.append(0, commit(folder))
    entry = json.loads(volume_of(folder.path).read(f"{folder.path}/.log.000001.json"))
    assert (entry["type"], entry["format"], entry["identity"]) == ("commit", 1, "x")
