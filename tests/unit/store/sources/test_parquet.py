"""Parquet: only wanted columns, by row groups; nulls are bad rows, and damage costs one group at most."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ponente.store.documents import Document, write_documents
from ponente.store.shards import ShardError
from ponente.store.sources.rows import SourceError
from ponente.store.sources.url import UrlSourceConfig

TEXTS = [f"{number} " + "abcdefgh"[number % 8] * (number * 7919 % 300) for number in range(1000)]


def write(path: Path, columns: dict[str, Any], **options: Any) -> str:
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def test_rows_come_in_order_with_their_numbers_however_the_file_is_split(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.parquet", {"n": list(range(1000)), "text": TEXTS}, row_group_size=70)
    for split_bytes in (1, 5000, 1 << 30):
        found = read_urls(path, split_bytes=split_bytes, group_bytes=1)
        assert (found.texts, found.lines, found.bad) == (TEXTS, list(range(1, 1001)), [])


def test_a_large_file_is_split_by_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, row_group_size=100, compression="none")
    from ponente.store.sources.parquet import ParquetReader

    pieces = ParquetReader().split(path, 10**9, 40_000)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, 10)
    assert len(pieces) > 3 and all(10_000 < piece.bytes <= 40_000 for piece in pieces)


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_text_may_be_of_any_string_type_and_nulls_are_bad_rows(
    tmp_path: Path, type_: Any, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.parquet", {"text": pa.array(["a", None, "", None, "b"], type_)})
    found = read_urls(path)
    assert (found.texts, found.rows) == (["a", "", "b"], [0, 2, 4])
    assert [(bad.line, bad.row) for bad in found.bad] == [(2, 1), (4, 3)]
    assert "found null as 'text'; needed str" in found.bad[0].error


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.list_(pa.int32(), 2), pa.list_(pa.float32())]
)
def test_lists_of_numbers_come_as_arrays(tmp_path: Path, type_: Any, read_urls: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.parquet", {"ids": pa.array([[1, 2], None, [3, 4], [5, None], [6, 7]], type_)})
    found = read_urls(path, fields={"ids": list[int]})
    assert [array.tolist() for array in found.values["ids"]] == [[1, 2], [3, 4], [6, 7]]
    assert found.values["ids"][0].dtype == type_.value_type.to_pandas_dtype()
    assert [bad.row for bad in found.bad] == [1, 3]


def test_lists_of_a_slice_are_those_of_the_slice(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.parquet", {"ids": [[number] * (number % 5) for number in range(100)]})
    found = read_urls(path, fields={"ids": list[int]}, skip=41)
    assert [array.tolist() for array in found.values["ids"]] == [[number] * (number % 5) for number in range(41, 100)]


def test_values_of_other_types_are_checked(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    chats = [[{"role": "user", "content": "a"}], [{"role": None, "content": "b"}], []]
    path = write(tmp_path / "a.parquet", {"messages": chats, "system": ["s", None, None]})
    fields = {"messages": list[dict[str, str]], "system": str | None, "tools": str | None}
    found = read_urls(path, fields=fields)
    assert found.values == {"messages": [chats[0], []], "system": ["s", None], "tools": [None, None]}
    assert [(bad.row, "got `null`" in bad.error) for bad in found.bad] == [(1, True)]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"body": str}, r"found no column 'body' in .*a\.parquet; needed 'body' \(str\).*text \(string\), n \(int64\)"),
        ({"n": str}, r"found column 'n' of type int64 in .*needed 'n' \(str\).*text \(string\), n \(int64\)"),
        ({"text": list[int]}, "found column 'text' of type string"),
        ({"text": list[dict[str, str]]}, "found column 'text' of type string"),
        ({"n": list[int]}, "found column 'n' of type int64"),
    ],
)
def test_a_missing_or_wrong_column_is_an_error_that_names_those_there(
    tmp_path: Path, fields: dict[str, Any], match: str, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["a"], "n": [1]})
    with pytest.raises(SourceError, match=match):
        read_urls(path, fields=fields)


def test_document_shards_are_parquet_files_whose_footer_counts(
    folder: str, tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    write_documents(f"{folder}/a.parquet", [Document(id=text[:4], text=text) for text in TEXTS], row_group_bytes=9000)
    found = read_urls(f"{folder}/a.parquet")
    assert (found.texts, found.bad) == (TEXTS, [])
    footer = {"ponente.format": "documents", "ponente.version": "99", "ponente.rows": "1"}
    table = pa.table({"text": ["a"]}).replace_schema_metadata(footer)
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(ShardError, match="Upgrade ponente"):
        read_urls(f"{tmp_path}/b.parquet")


def test_a_file_without_rows_is_no_fault_and_one_without_bytes_is(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.parquet", {"text": pa.array([], pa.string())})
    found = read_urls(path)
    assert (found.texts, found.bad) == ([], [])
    Path(path).write_bytes(b"")
    assert [(bad.line, "empty file" in bad.error) for bad in read_urls(path).bad] == [(0, True)]


def test_a_truncated_file_is_one_bad_row(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    whole = Path(path).read_bytes()
    for length in (3, 100, len(whole) // 2, len(whole) - 1):
        Path(path).write_bytes(whole[:length])
        found = read_urls(path, split_bytes=10)
        assert (found.texts, [(bad.line, bad.row) for bad in found.bad]) == ([], [(0, 0)])
        assert "truncated or corrupt" in found.bad[0].error and "all of it is lost" in found.bad[0].error


def test_a_corrupt_row_group_costs_its_own_rest_and_the_numbers_of_later_rows_stay(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    options = {"row_group_size": 100, "write_page_checksum": True, "use_dictionary": False}
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, **options)
    group = pq.read_metadata(path).row_group(3).column(0)
    data = bytearray(Path(path).read_bytes())
    data[group.data_page_offset + group.total_compressed_size // 2] ^= 255
    Path(path).write_bytes(data)
    found = read_urls(path)
    assert (found.texts[:300], found.texts[-600:]) == (TEXTS[:300], TEXTS[400:])
    (bad,) = found.bad
    assert 300 <= bad.row < 400 and bad.line == bad.row + 1
    assert "the rest of its row group is lost" in bad.error
    assert found.rows[-600:] == list(range(400, 1000))


def test_a_flipped_bit_in_a_text_is_noticed_where_pages_have_checksums(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    options = {"compression": "none", "write_page_checksum": True, "use_dictionary": False}
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, **options)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data.replace(b"17 bbbb", b"17 bbbc", 1))
    found = read_urls(path)
    assert (found.texts, len(found.bad)) == ([], 1)


def test_only_wanted_columns_are_read(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    path = write(
        tmp_path / "a.parquet", {"text": TEXTS, "other": TEXTS}, write_page_checksum=True, use_dictionary=False
    )
    column = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(Path(path).read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 255
    Path(path).write_bytes(data)
    assert read_urls(path).texts == TEXTS
    assert len(read_urls(path, fields={"other": str}).bad) == 1


def test_a_unit_is_read_by_its_row_groups_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, row_group_size=100)
    unit = {"pieces": [{"path": path, "start": 2, "stop": 4}], "bytes": 1}
    (batch,) = UrlSourceConfig(train_urls=(path,)).read(unit, {"text": str}, skip=150)
    assert (batch.values["text"], batch.rows) == (TEXTS[350:400], list(range(150, 200)))
    assert batch.place(150) == (path, 351)
