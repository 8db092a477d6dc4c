"""Shards that fail every time, kill their worker or hang: tried a few times, set aside within a budget, and named."""

import multiprocessing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import shard_kinds
from harness import TRACE, Site, Sites

from ponente.cluster import PoisonShardError, ShardMap, map_shards
from ponente.cluster.context import StepContext, running_step
from ponente.executor.records import Outcome

ENOUGH_SECONDS = 4.0  # for a good shard, the start of its worker included; a hanging one takes it all
CAUSES = {
    "raises": "ValueError: this shard cannot be read",
    "exits": "exit code 9",
    "hangs": f"longer than {ENOUGH_SECONDS} seconds",
    "dies-answering": "SIGKILL",
}


class Map:
    """Calls map_shards in a step's place, and keeps the events."""

    def __init__(self, site: Site) -> None:
        self.state = site.root / "state"
        self.events: list[tuple[str, str, int]] = []
        self.errors: dict[str, str] = {}

    def __call__(self, *arguments: Any, **options: Any) -> ShardMap:
        context = StepContext(
            name="map", output_path="unused", state_path=str(self.state), record_event=self._record_event
        )
        with running_step(context):
            return map_shards(*arguments, **options)

    def _record_event(self, kind: str, data: Mapping[str, Any]) -> None:
        self.events.append((kind, data["shard"], data["tries"]))
        self.errors[data["shard"]] = data["error"]


@pytest.fixture
def site(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Where the test calls map_shards itself; its workers must be gone when it returns."""
    site = sites("shard_kinds")
    monkeypatch.setenv(TRACE, str(site.trace))
    yield site
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("poison", CAUSES)
def test_a_poison_shard_is_tried_a_few_times_then_set_aside_and_named(poison: str, site: Site) -> None:
    mapping = Map(site)
    result = mapping(
        shard_kinds.handle,
        ["a", "b", poison, "c"],
        suffix=".txt",
        workers=2,
        max_attempts=2,
        max_quarantined=1,
        timeout_seconds=ENOUGH_SECONDS,
        weight=["c", "raises", "exits", "hangs", "dies-answering", "b", "a"].index,
    )
    assert site.traces("shard-*") == {"shard-a": 1, "shard-b": 1, "shard-c": 1, f"shard-{poison}": 2}
    assert [(shard.index, shard.shard) for shard in result.quarantined] == [(2, poison)]
    assert CAUSES[poison] in result.quarantined[0].error
    assert result.values == ["A", "B", "C"]
    assert [Path(path).read_text() for path in result.paths] == ["A", "B", "C"]
    assert mapping.events == [
        ("shard_failed", poison, 1),
        ("shard_failed", poison, 2),
        ("shard_quarantined", poison, 2),
    ]
    assert CAUSES[poison] in mapping.errors[poison]


def test_one_poison_shard_more_than_the_budget_is_an_error_that_names_them(site: Site) -> None:
    with pytest.raises(PoisonShardError) as caught:
        Map(site)(
            shard_kinds.handle,
            ["a", "raises", "exits"],
            workers=2,
            max_attempts=2,
            max_quarantined=1,
        )
    assert "shard 1 ('raises')" in str(caught.value)
    assert "shard 2 ('exits')" in str(caught.value)
    assert "max_quarantined" in str(caught.value)


def test_a_step_within_its_budget_is_committed_with_the_poison_shards_in_its_events(sites: Sites) -> None:
    site = sites("shard_kinds")
    ended = site.run("--run_only", "tolerant")
    assert ended.code == 0, ended
    assert site.published(shard_kinds.tolerant) == {
        "quarantined.txt": b"raises\nexits",
        "shards/00000.txt": b"A",
        "shards/00002.txt": b"B",
        "shards/00004.txt": b"C",
    }
    events = site.folder(shard_kinds.tolerant).events()
    assert {event["shard"] for event in events if event["kind"] == "shard_quarantined"} == {"raises", "exits"}


def test_a_step_above_its_budget_fails_and_redoes_no_good_shard_when_it_is_tried_again(sites: Sites) -> None:
    site = sites("shard_kinds")
    ended = site.run("--run_only", "strict")
    assert ended.code == 1, ended
    assert "PoisonShardError" in ended.out
    assert "shard 1 ('raises')" in ended.out
    assert "shard 3 ('exits')" in ended.out
    [release] = site.releases(shard_kinds.strict)
    assert (release.outcome, release.error.type) == (Outcome.FAILED, "PoisonShardError")
    before = site.traces("shard-*")
    assert site.run("--run_only", "strict", "--force_run_failed").code == 1
    after = site.traces("shard-*")
    assert {name: after[name] - before[name] for name in after} == {
        "shard-a": 0,
        "shard-b": 0,
        "shard-c": 0,
        "shard-exits": 2,
        "shard-raises": 2,
    }


def test_the_heaviest_shards_go_first(site: Site, tmp_path: Path) -> None:
    sizes = {"small": 10, "huge": 5000, "middle": 700, "tiny": 1, "large": 900}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    Map(site)(shard_kinds.order, [str(tmp_path / name) for name in sizes], workers=1)
    assert (site.trace / "order").read_text().split() == ["huge", "large", "middle", "small", "tiny"]


def test_a_weight_that_the_caller_gives_decides_the_order(site: Site) -> None:
    Map(site)(shard_kinds.order, ["aaa", "a", "aaaa", "aa"], workers=1, weight=len)
    assert (site.trace / "order").read_text().split() == ["aaaa", "aaa", "aa", "a"]


def test_no_worker_idles_while_shards_wait_however_long_the_heaviest_takes(site: Site) -> None:
    heaviest, *others = Map(site)(
        shard_kinds.wait_for_all_others, list(range(8)), workers=2, weight=lambda shard: -shard
    ).values
    assert len(others) == 7
    assert heaviest not in others
