"""Compressed files: what was whole is kept, what is broken is named at its line, and a failing disk is no damage."""

import io
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponente.store.sources import streams
from ponente.store.sources.url import UrlSourceConfig
from ponente.store.volume import volume_of

COMPRESSIONS = [".gz", ".bz2", ".xz", ".zst"]
Compress = dict[str, Callable[[bytes], bytes]]


def texts(count: int) -> list[str]:
    return [f"{number} {'abcdefgh'[number % 8] * (number * 7919 % 50)} {number * 104729}" for number in range(count)]


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
@pytest.mark.parametrize("ending", [".jsonl", ".ndjson", ".json", ".txt"])
def test_every_ending_is_read_in_every_compression_on_every_volume(
    folder: str, ending: str, compression: str, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    rows = texts(5000)
    data = "\n".join(rows).encode() if ending == ".txt" else json_lines(*({"text": row} for row in rows))
    encoded = compress[compression](data)
    volume_of(folder).create(f"{folder}/a{ending}{compression}", encoded)
    found = read_urls(f"{folder}/a{ending}{compression}")
    assert (found.texts, found.bad) == (rows, [])
    assert found.lines == list(range(1, 5001))
    assert found.source_bytes == len(encoded)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_several_members_are_one_file_and_a_line_may_go_on_in_the_next(
    tmp_path: Path, compression: str, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    data = json_lines(*({"text": row} for row in texts(400)))
    parts = [data[:40], b"", data[40:9000], data[9000:]]
    padding = b"" if compression == ".zst" else bytes(8)
    encoded = padding.join(compress[compression](part) for part in parts) + padding
    (tmp_path / f"a.jsonl{compression}").write_bytes(encoded)
    found = read_urls(f"{tmp_path}/a.jsonl{compression}")
    assert (found.texts, found.bad) == (texts(400), [])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_truncated_file_keeps_the_rows_before_and_says_once_where_it_broke(
    tmp_path: Path, compression: str, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    rows, path = texts(60), tmp_path / f"a.jsonl{compression}"
    first = compress[compression](json_lines(*({"text": row} for row in rows[:30])))
    whole = first + compress[compression](json_lines(*({"text": row} for row in rows[30:])))
    for length in range(1, len(whole), 3):
        path.write_bytes(whole[:length])
        found = read_urls(str(path))
        assert found.texts == rows[: len(found.texts)]
        assert len(found.texts) >= (30 if length >= len(first) else 0)
        if length == len(first):
            continue
        (bad,) = found.bad
        assert (bad.line, bad.row) == (len(found.texts) + 1, len(found.texts))
        assert "truncated or corrupt from here on" in bad.error and "is lost" in bad.error


def test_a_truncated_gzip_file_keeps_every_row_that_is_in_it(
    tmp_path: Path, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    for compression in (".gz", ".zst"):
        encoded = compress[compression](json_lines(*({"text": row} for row in texts(20_000))))
        (tmp_path / f"a.jsonl{compression}").write_bytes(encoded[: len(encoded) * 3 // 4])
        found = read_urls(f"{tmp_path}/a.jsonl{compression}")
        assert len(found.texts) > 12_000 and len(found.bad) == 1, compression


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz"])
def test_a_flipped_bit_is_noticed_and_rows_far_before_it_are_kept(
    tmp_path: Path, compression: str, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    rows, path = texts(30_000), tmp_path / f"a.jsonl{compression}"
    first = compress[compression](json_lines(*({"text": row} for row in rows[:20_000])))
    whole = bytearray(first + compress[compression](json_lines(*({"text": row} for row in rows[20_000:]))))
    whole[len(first) + (len(whole) - len(first)) // 2] ^= 4
    path.write_bytes(whole)
    found = read_urls(str(path))
    assert found.texts[:17_000] == rows[:17_000]
    assert len(found.texts) < 30_000
    assert "truncated or corrupt" in found.bad[-1].error


def test_of_a_gzip_file_every_row_before_the_corrupt_byte_is_kept(
    tmp_path: Path, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    rows, compressor = texts(500), zlib.compressobj(wbits=31)
    data = compressor.compress(json_lines(*({"text": row} for row in rows))) + compressor.flush(zlib.Z_FULL_FLUSH)
    (tmp_path / "a.jsonl.gz").write_bytes(data + b"\xff" * 50)
    found = read_urls(f"{tmp_path}/a.jsonl.gz")
    assert len(found.texts) >= 498 and found.texts == rows[: len(found.texts)]
    assert [bad.row for bad in found.bad] == [len(found.texts)]


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
def test_a_lost_connection_is_raised_and_is_no_damage(
    tmp_path: Path,
    compression: str,
    compress: Compress,
    json_lines: Any,
    read_urls: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(compress[compression](json_lines({"text": "a"})))

    class Lost(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("connection lost")

    monkeypatch.setattr("ponente.store.sources.zstd.open_raw", lambda _: Lost())  # first: it is imported here
    monkeypatch.setattr("ponente.store.sources.streams.open_raw", lambda _: Lost())
    with pytest.raises(OSError, match="connection lost"):
        read_urls(str(path))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_bytes_that_are_not_compressed_are_one_bad_row_at_line_1(
    tmp_path: Path, compression: str, read_urls: Callable[..., Any]
) -> None:
    (tmp_path / f"a.jsonl{compression}").write_bytes(b"<html>not found</html>\n" * 50)
    found = read_urls(f"{tmp_path}/a.jsonl{compression}")
    assert (found.texts, [(bad.line, bad.row) for bad in found.bad]) == ([], [(1, 0)])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_empty_compressed_file_is_one_bad_row_at_line_0(
    tmp_path: Path, compression: str, compress: Compress, read_urls: Callable[..., Any]
) -> None:
    for data in (b"", compress[compression](b"")):
        (tmp_path / f"a.jsonl{compression}").write_bytes(data)
        found = read_urls(f"{tmp_path}/a.jsonl{compression}")
        assert (found.texts, [(bad.line, bad.row) for bad in found.bad]) == ([], [(0, 0)])


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
def test_a_real_error_of_the_disk_is_raised(
    tmp_path: Path, compression: str, compress: Compress, json_lines: Any, read_urls: Callable[..., Any]
) -> None:
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(compress[compression](json_lines({"text": "a"})))
    source = UrlSourceConfig(train_urls=(str(path),))
    (unit,) = source.units("train")
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        list(source.read(unit, {"text": str}))


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, compression: str, compress: Compress, json_lines: Any
) -> None:
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(compress[compression](json_lines({"text": "x" * 1000}) * 24_000))
    tracemalloc.start()
    try:
        assert sum(map(len, streams.ByteStream(str(path)))) == 24_000 * 1013
        assert tracemalloc.get_traced_memory()[1] < (12 << 20 if compression == ".xz" else 4 << 20)
    finally:
        tracemalloc.stop()
