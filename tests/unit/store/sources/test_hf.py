"""Hugging Face datasets, from local folders and without the hub: units, rows, fingerprints, and what goes wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

datasets = pytest.importorskip("datasets")

from ponente.store.sources import hub  # noqa: E402
from ponente.store.sources.fingerprints import changes  # noqa: E402
from ponente.store.sources.hf import HfSourceConfig  # noqa: E402
from ponente.store.sources.rows import SourceError  # noqa: E402

TEXTS = [f"{number} " + "x" * (number % 7) for number in range(50)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "n": number}) + "\n" for number, text in enumerate(texts)))


@pytest.fixture
def jsonl_folder(tmp_path: Path) -> str:
    lines(tmp_path / "data" / "train-00000.jsonl", TEXTS[:20])
    lines(tmp_path / "data" / "train-00001.jsonl", TEXTS[20:])
    lines(tmp_path / "data" / "validation.jsonl", ["v"])
    return str(tmp_path / "data")


def read(source: HfSourceConfig, split: str = "train", *, skip: int = 0, plan: Any = None) -> Any:
    units = source.units(split) if plan is None else plan
    batches = [batch for unit in units for batch in source.read(unit, {"text": str}, skip=skip)]
    return [text for batch in batches for text in batch.values["text"]], [bad for batch in batches for bad in batch.bad]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet"])
def test_a_folder_of_files_has_its_splits_and_rows(tmp_path: Path, stream: bool, kind: str) -> None:
    for name, texts in {"train-0": TEXTS[:20], "train-1": TEXTS[20:], "validation": ["v"]}.items():
        path = tmp_path / "data" / f"{name}.{kind}"
        path.parent.mkdir(exist_ok=True)
        if kind == "parquet":
            pq.write_table(pa.table({"text": texts}), path, row_group_size=6)
        elif kind == "txt":
            path.write_text("\n".join(texts))
        else:
            lines(path, texts)
    source = HfSourceConfig(id=f"{tmp_path}/data", stream=stream)
    assert source.splits() == ["train", "validation"]
    assert read(source) == (TEXTS, [])
    assert read(source, "validation") == (["v"], [])


def test_streamed_shards_are_units_and_row_groups_where_files_are_few(tmp_path: Path, jsonl_folder: str) -> None:
    source = HfSourceConfig(id=jsonl_folder)
    units = hub.plan(source, "train", target_bytes=1)
    assert [(unit["shard"], unit["shards"]) for unit in units] == [(0, 2), (1, 2)]
    assert (
        sum(unit["bytes"] for unit in units)
        == sum(path.stat().st_size for path in Path(jsonl_folder).glob("train*")) // 2 * 2
    )
    assert read(source, plan=units) == (TEXTS, [])
    assert read(source, plan=units[1:])[0] == TEXTS[20:]
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "parquet" / "train.parquet", row_group_size=10)
    source = HfSourceConfig(id=f"{tmp_path}/parquet")
    units = hub.plan(source, "train", target_bytes=1)
    assert len(units) == 5
    assert read(source, plan=units) == (TEXTS, [])
    assert len(source.units("train")) == 1


def test_prepared_datasets_are_split_in_ranges_of_rows_with_their_numbers(jsonl_folder: str) -> None:
    source = HfSourceConfig(id=jsonl_folder, stream=False)
    units = hub.plan(source, "train", target_bytes=300)
    assert [unit["start"] for unit in units[1:]] == [unit["stop"] for unit in units[:-1]]
    assert (units[0]["start"], units[-1]["stop"]) == (0, 50)
    assert len(units) > 2
    assert read(source, plan=units) == (TEXTS, [])
    (batch,) = source.read(units[1], {"text": str})
    assert batch.place(0) == (f"{jsonl_folder}:train", units[1]["start"] + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_reading_on_from_any_row(jsonl_folder: str, stream: bool) -> None:
    source = HfSourceConfig(id=jsonl_folder, stream=stream)
    (unit,) = source.units("train")
    for skip in (0, 1, 19, 20, 21, 49, 50, 51):
        batches = list(source.read(unit, {"text": str}, skip=skip))
        assert [text for batch in batches for text in batch.values["text"]] == TEXTS[skip:]
        assert [row for batch in batches for row in batch.rows] == list(range(skip, 50))


@pytest.mark.parametrize("as_dict", [True, False])
def test_a_folder_of_save_to_disk_is_read(tmp_path: Path, as_dict: bool) -> None:
    train = datasets.Dataset.from_dict({"text": TEXTS})
    saved = datasets.DatasetDict({"train": train, "test": train.select([3])}) if as_dict else train
    saved.save_to_disk(f"{tmp_path}/saved")
    source = HfSourceConfig(id=f"{tmp_path}/saved")
    assert source.splits() == ["train"]
    assert read(source) == (TEXTS, [])
    assert [Path(one.path).suffix for one in source.fingerprints("train")] == [".arrow"]
    if as_dict:
        other = replace(source, split_names={"train": "train", "validation": "test"})
        assert other.splits() == ["train", "validation"]
        assert read(other, "validation") == ([TEXTS[3]], [])
    else:
        with pytest.raises(SourceError, match=r"found no split 'validation' in dataset .*; needed one of: train"):
            source.units("validation")


def test_nulls_are_bad_rows_and_a_missing_column_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "data" / "train.parquet")
    source = HfSourceConfig(id=f"{tmp_path}/data")
    texts, (bad,) = read(source)
    assert (texts, bad.row, bad.line) == (["a", "c"], 1, 2)
    assert bad.path == f"{tmp_path}/data:train:shard 1 of 1"
    (unit,) = source.units("train")
    with pytest.raises(SourceError, match=r"found no column 'body' in .*; needed 'body' \(str\).*text \(string\)"):
        list(source.read(unit, {"body": str}))


def test_broken_json_costs_the_rest_of_its_shard(jsonl_folder: str) -> None:
    with open(f"{jsonl_folder}/train-00001.jsonl", "a") as file:
        file.write('{"text": \n')
    source = HfSourceConfig(id=jsonl_folder)
    texts, (bad,) = read(source, plan=hub.plan(source, "train", target_bytes=1))
    assert texts[:20] == TEXTS[:20]
    assert "the rest of this shard is lost" in bad.error


def test_fingerprints_are_of_the_files_in_every_process(jsonl_folder: str) -> None:
    source = HfSourceConfig(id=jsonl_folder)
    before = source.fingerprints("train")
    assert [os.path.basename(one.path) for one in before] == ["train-00000.jsonl", "train-00001.jsonl"]
    script = (
        "from ponente.store.sources.hf import HfSourceConfig as C; import sys\n"
        "print([one.digest for one in C(id=sys.argv[1]).fingerprints('train')])"
    )
    done = subprocess.run([sys.executable, "-c", script, jsonl_folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([one.digest for one in before])
    lines(Path(jsonl_folder) / "train-00001.jsonl", TEXTS)
    assert ["train-00001.jsonl changed" in one for one in changes(before, source.fingerprints("train"))] == [True]


def test_a_file_of_the_hub_is_known_by_the_digest_that_the_hub_keeps() -> None:
    path = "hf://datasets/a/b@{}/data/train.parquet"
    info = {"size": 7, "blob_id": "blob", "lfs": {"sha256": "digest"}}
    before, after = (hub.hub_fingerprint(path.format(commit), info) for commit in ("111", "222"))
    assert (before.size, before.digest) == (7, "digest")
    assert changes([before], [after]) == []
    assert hub.hub_fingerprint(path, {"size": 7, "blob_id": "blob"}).digest == "blob"


def test_a_folder_that_is_not_there_is_an_error_without_asking_the_hub() -> None:
    for method in (HfSourceConfig.splits, lambda source: source.units("train")):
        with pytest.raises(SourceError, match="found no folder /no/such/folder"):
            method(HfSourceConfig(id="/no/such/folder"))


def test_a_split_that_is_not_there_is_an_error_that_names_those_there(tmp_path: Path) -> None:
    lines(tmp_path / "data" / "test.jsonl", ["a"])
    with pytest.raises(SourceError, match=r"found the splits test in dataset .*; needed one of: train, validation"):
        HfSourceConfig(id=f"{tmp_path}/data").splits()
    with pytest.raises(SourceError, match="needed train and validation as keys"):
        HfSourceConfig(id="x", split_names={"test": "test"})


def test_a_folder_without_data_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "script.py").write_text("raise SystemExit('remote code was run')")
    with pytest.raises(SourceError, match=r"found no data files in dataset .*never run"):
        HfSourceConfig(id=f"{tmp_path}/data").splits()


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (
            ConnectionError("no route"),
            r"found dataset 'a/b' \(config 'en'\) out of reach \(no route\).*give the folder",
        ),
        (datasets.exceptions.DatasetNotFoundError("gated"), r"https://huggingface\.co/datasets/a/b and set HF_TOKEN"),
        (ValueError("BuilderConfig 'en' not found. Available: ['de']"), r"Available: \['de'\].*Set name"),
    ],
)
def test_what_the_hub_says_is_said_with_what_to_do(
    error: Exception, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    for name in ("load_dataset", "get_dataset_split_names", "load_dataset_builder"):
        monkeypatch.setattr(datasets, name, fail)
    source = HfSourceConfig(id="a/b", name="en")
    calls: list[Callable[[], Any]] = [
        source.splits,
        lambda: source.units("train"),
        lambda: source.fingerprints("train"),
    ]
    for call in calls:
        with pytest.raises(SourceError, match=match):
            call()
