"""Trackers in YAML: by type, several at once, and by Levanter's names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ponente.config import Kind, observation
from ponente.config.decode import decode
from ponente.config.fields import class_kind, field_specs
from ponente.config.problems import ConfigError
from ponente.config.rewrite import rewrite
from ponente.config.snapshot import plain_value
from ponente.store.metrics import read_metrics
from ponente.train.trackers import (
    JsonFileTrackerConfig,
    JsonTrackerConfig,
    LocalTrackerConfig,
    NoopTrackerConfig,
    RunInfo,
    TensorboardConfig,
    TrackerConfig,
    WandbConfig,
    begin_trackers,
)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    tracker: TrackerConfig | list[TrackerConfig] | None = observation(default_factory=LocalTrackerConfig)


@dataclass(frozen=True, kw_only=True)
class WholeConfig:
    trainer: TrainerConfig = TrainerConfig()


def tracker_of(text: str) -> Any:
    return decode(WholeConfig, rewrite(yaml.safe_load(text)).tree).trainer.tracker


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer: {}", LocalTrackerConfig()),
        ("trainer: {tracker: {}}", LocalTrackerConfig()),
        ("trainer: {tracker: {publish_seconds: 1}}", LocalTrackerConfig(publish_seconds=1.0)),
        ("trainer: {tracker: null}", None),
        ("trainer: {tracker: {type: noop}}", NoopTrackerConfig()),
        ("trainer: {tracker: {type: json}}", JsonTrackerConfig()),
        ("trainer: {tracker: {type: json_logger, level: 10}}", JsonTrackerConfig(level=10)),
        ("trainer: {tracker: {type: json_file, output_path: out}}", JsonFileTrackerConfig(output_path="out")),
        ("trainer: {tracker: {type: tensorboard, logdir: tblogs}}", TensorboardConfig(logdir="tblogs")),
        ("trainer: {wandb: {project: p, tags: [a, b]}}", WandbConfig(project="p", tags=("a", "b"))),
        ("trainer: {wandb: {mode: offline, id: 7}}", WandbConfig(mode="offline", id="7")),
        (
            "trainer: {tracker: [{type: wandb, entity: e, group: g}, {type: local}]}",
            [WandbConfig(entity="e", group="g"), LocalTrackerConfig()],
        ),
    ],
)
def test_trackers_are_read_from_yaml(text: str, expected: Any) -> None:
    assert tracker_of(text) == expected


def test_a_mistaken_type_or_mode_is_named() -> None:
    with pytest.raises(ConfigError, match="tensorboard"):
        tracker_of("trainer: {tracker: {type: tensorbord}}")
    with pytest.raises(ConfigError, match="offline"):
        tracker_of("trainer: {wandb: {mode: dark}}")


def test_trackers_are_no_part_of_an_identity() -> None:
    for cls in set(TrackerConfig.get_known_choices().values()):
        assert class_kind(cls) is Kind.OBSERVATION
        assert {spec.kind for spec in field_specs(cls)} <= {Kind.OBSERVATION}


def test_a_snapshot_reads_back() -> None:
    trackers = [
        JsonTrackerConfig(path="x"),
        WandbConfig(tags=("a",)),
        JsonFileTrackerConfig(),
        TensorboardConfig(),
        LocalTrackerConfig(),
    ]
    plain = {"trainer": {"tracker": plain_value(trackers)}}
    assert decode(WholeConfig, rewrite(plain).tree).trainer.tracker == trackers


def test_trackers_of_a_config_all_track(run: RunInfo, tmp_path: Path) -> None:
    tracker = begin_trackers([LocalTrackerConfig(), JsonTrackerConfig(path=str(tmp_path / "x.jsonl"))], run)
    tracker.log({"train/loss": 1.0}, 0)
    tracker.finish()
    assert [row.metrics for row in read_metrics(run.folder)] == [{"train/loss": 1.0}]
    assert '"train/loss":1.0' in (tmp_path / "x.jsonl").read_text()


def test_no_tracker_keeps_nothing(run: RunInfo) -> None:
    choices: list[TrackerConfig | list[TrackerConfig] | None] = [None, [], NoopTrackerConfig()]
    for trackers in choices:
        tracker = begin_trackers(trackers, run)
        tracker.log({"train/loss": 1.0}, 0)
        tracker.finish()
    assert not Path(run.folder).exists()
