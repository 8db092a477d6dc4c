"""Fingerprints: content decides, time only spares reading, and what cannot be reached is no change."""

import os
from pathlib import Path

import pytest

from ponente.store.sources.files import state_of
from ponente.store.sources.fingerprints import (
    SAMPLE_BYTES,
    WHOLE_BYTES,
    changes,
    check_fingerprints,
    fingerprint,
    fingerprints_of,
)
from ponente.store.sources.source import Fingerprint
from ponente.store.sources.url import UrlSourceConfig
from ponente.store.volume import volume_of


def stored(folder: Path | str, **files: bytes) -> list[Fingerprint]:
    for name, data in files.items():
        volume_of(str(folder)).replace(f"{folder}/{name}.jsonl", data)
    return fingerprints_of([state_of(f"{folder}/{name}.jsonl") for name in files])


def test_a_source_gives_the_state_of_its_files_in_the_order_of_its_units(folder: str) -> None:
    stored(folder, a=b"1", b=b"22")
    source = UrlSourceConfig(train_urls=(f"{folder}/{{b,a}}.jsonl",), validation_urls=(f"{folder}/a.jsonl",))
    assert [(one.path[-7:], one.size) for one in source.fingerprints("train")] == [("b.jsonl", 2), ("a.jsonl", 1)]
    assert [one.size for one in source.fingerprints("validation")] == [1]
    assert all(len(one.digest) == 64 and one.modified for one in source.fingerprints("train"))


def test_both_files_of_a_megatron_pair_count(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12")
    (tmp_path / "a.idx").write_bytes(b"3")
    found = UrlSourceConfig(train_urls=(f"{tmp_path}/a",)).fingerprints("train")
    assert [one.path[-5:] for one in found] == ["a.bin", "a.idx"]


def test_a_change_anywhere_in_a_small_file_and_of_head_tail_or_size_of_a_large_one_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for size in (100, WHOLE_BYTES, WHOLE_BYTES + 1):
        data = bytearray(size)
        path.write_bytes(data)
        before = fingerprint(state_of(str(path)))
        for at in (0, size - 1) if size > WHOLE_BYTES else (0, size // 3, size - 1):
            data[at] = 1
            path.write_bytes(data)
            data[at] = 0
            assert fingerprint(state_of(str(path))).digest != before.digest
        path.write_bytes(data)
        assert fingerprint(state_of(str(path))).digest == before.digest
        path.write_bytes(data + b"\0")
        assert fingerprint(state_of(str(path))).digest != before.digest


def test_of_a_large_file_only_samples_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    before = fingerprint(state_of(str(path)))
    with path.open("r+b") as file:
        file.seek(SAMPLE_BYTES + 5)
        file.write(b"x")
    assert fingerprint(state_of(str(path))).digest == before.digest


def test_what_happened_is_said_in_sentences(tmp_path: Path) -> None:
    before = stored(tmp_path, a=b"a", b=b"b", c=b"c", d=b"d")
    now = stored(tmp_path, a=b"a", b=b"B", c=b"ccc", e=b"e")
    assert changes(before, now) == [
        f"{tmp_path}/b.jsonl changed: other bytes of the same size",
        f"{tmp_path}/c.jsonl changed: 1 bytes then, 3 now",
        f"{tmp_path}/d.jsonl was removed",
        f"{tmp_path}/e.jsonl was added",
    ]


def test_order_and_number_of_files_count(tmp_path: Path) -> None:
    before = stored(tmp_path, a=b"a", b=b"b")
    assert changes(before, before[::-1]) == ["the same files come in another order"]
    assert changes(before, [*before, before[0]]) == ["files are there another number of times: 2 then, 3 now"]
    assert changes(before, before) == []


def test_a_moved_folder_is_no_change(tmp_path: Path) -> None:
    before = stored(tmp_path, a=b"a", b=b"b")
    (tmp_path / "moved").mkdir()
    now = stored(tmp_path / "moved", a=b"a", b=b"b")
    assert changes(before, now) == []
    assert check_fingerprints(before, [one.path for one in now]) == []
    assert check_fingerprints(before, [one.path for one in now[::-1]]) == ["the same files come in another order"]


def test_a_file_of_equal_size_and_time_is_not_read_and_one_of_another_time_is(folder: str, tmp_path: Path) -> None:
    before = stored(tmp_path, a=b"a", b=b"b")
    paths = [one.path for one in before]
    Path(paths[0]).write_bytes(b"x")
    os.utime(paths[0], ns=(0, int(before[0].modified)))
    assert check_fingerprints(before, paths) == []
    os.utime(paths[0], ns=(0, 7))
    assert check_fingerprints(before, paths) == [f"{paths[0]} changed: other bytes of the same size"]
    os.utime(paths[1], ns=(0, 7))
    Path(paths[0]).write_bytes(b"a")
    assert check_fingerprints(before, paths) == []
    assert check_fingerprints(stored(folder, a=b"a"), [f"{folder}/a.jsonl"]) == []


def test_a_file_that_cannot_be_reached_is_not_checked_and_no_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = stored(tmp_path, a=b"a", b=b"b")
    before.append(Fingerprint(path="nosuchprotocol://bucket/c.jsonl", size=1, digest="d"))
    Path(before[0].path).unlink()
    assert check_fingerprints(before, [one.path for one in before]) == []
    assert "a.jsonl cannot be reached" in caplog.text
    assert caplog.text.count("was not checked") == 2
    with pytest.raises(FileNotFoundError):
        check_fingerprints(before, [f"{tmp_path}/new.jsonl"])
