"""Attribute shards beside document shards: row by row, or an error that names both files."""

from pathlib import Path

import pyarrow as pa
import pytest

from ponente.store.documents import (
    Document,
    attribute_path,
    count_attributes,
    join_attributes,
    read_attributes,
    read_documents,
    read_with_attributes,
    write_attributes,
    write_documents,
)
from ponente.store.shards import ShardError

SCORES = pa.schema({"score": pa.float64(), "language": pa.string()})


def some_documents(count: int) -> list[Document]:
    return [Document(id=f"d{number}", text=f"text {number} é " * 20, source="s") for number in range(count)]


def test_attributes_lie_beside_the_documents_under_the_same_name() -> None:
    assert attribute_path("/data/documents/00003.parquet", "language") == "/data/attributes/language/00003.parquet"
    assert attribute_path("memory://d/documents/a/3.parquet", "x") == "memory://d/attributes/x/a/3.parquet"
    assert attribute_path("/documents/old/documents/3.parquet", "x") == "/documents/old/attributes/x/3.parquet"
    with pytest.raises(ValueError, match="no folder named documents"):
        attribute_path("/data/filtered/00003.parquet", "language")
    for name in ("", ".hidden", "a/b", ".."):
        with pytest.raises(ValueError, match="needed a plain name"):
            attribute_path("/data/documents/00003.parquet", name)


def test_documents_are_joined_with_their_attributes_row_by_row(folder: str) -> None:
    documents, path = some_documents(2000), f"{folder}/documents/00003.parquet"
    write_documents(path, documents, row_group_bytes=30_000)
    rows = [
        (document.id, {"score": number / 7, "language": None if number % 3 else "és"})
        for number, document in enumerate(documents)
    ]
    lengths = [(document.id, {"spans": [[number, number + 1]]}) for number, document in enumerate(documents)]
    assert write_attributes(attribute_path(path, "quality"), iter(rows), SCORES, row_group_bytes=9000) == 2000
    write_attributes(attribute_path(path, "lengths"), lengths, pa.schema({"spans": pa.list_(pa.list_(pa.int64()))}))
    expected = [
        (document, {"quality": values, "lengths": spans})
        for document, (_, values), (_, spans) in zip(documents, rows, lengths, strict=True)
    ]
    assert list(read_with_attributes(path, ["quality", "lengths"])) == expected
    assert list(read_attributes(attribute_path(path, "quality"), batch_bytes=100)) == rows
    assert count_attributes(attribute_path(path, "quality")) == 2000


def test_shards_in_any_two_places_are_joined_by_path(tmp_path: Path) -> None:
    write_documents(f"{tmp_path}/one/a.parquet", some_documents(2))
    write_attributes(f"{tmp_path}/two/b.parquet", [("d0", {"score": 1}), ("d1", {})], SCORES)
    joined = list(join_attributes(f"{tmp_path}/one/a.parquet", {"q": f"{tmp_path}/two/b.parquet"}))
    assert [values["q"] for _, values in joined] == [
        {"score": 1.0, "language": None},
        {"score": None, "language": None},
    ]


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (["d0", "d1"], "found 3 documents in {documents} but 2 rows in {attributes}"),
        (["d0", "d1", "d2", "d3"], "found 3 documents in {documents} but 4 rows in {attributes}"),
        (["d0", "d2", "d1"], "found id 'd1' at row 1 in {documents} but 'd2' there in {attributes}"),
    ],
)
def test_attributes_of_other_documents_are_an_error_that_names_both_files(
    tmp_path: Path, ids: list[str], complaint: str
) -> None:
    path = f"{tmp_path}/documents/00003.parquet"
    write_documents(path, some_documents(3))
    write_attributes(attribute_path(path, "quality"), [(id_, {"score": 0.5}) for id_ in ids], SCORES)
    with pytest.raises(ShardError) as caught:
        list(read_with_attributes(path, ["quality"]))
    assert str(caught.value).startswith(complaint.format(documents=path, attributes=attribute_path(path, "quality")))


def test_attributes_outside_their_schema_are_an_error(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.parquet"
    with pytest.raises(ShardError, match=r"\['scroe'\] of document 'd1'.*a\.parquet.*score, language"):
        write_attributes(path, [("d0", {}), ("d1", {"scroe": 1})], SCORES)
    with pytest.raises(ShardError, match=r"column 'score' of .*a\.parquet.*needed double"):
        write_attributes(path, [("d0", {"score": "high"})], SCORES)
    with pytest.raises(ShardError, match="named 'id'"):
        write_attributes(path, [], pa.schema({"id": pa.string()}))
    with pytest.raises(ShardError, match=r"column 'score'.*None"):
        write_attributes(path, [("d0", {})], pa.schema([pa.field("score", pa.float64(), nullable=False)]))
    assert list(tmp_path.iterdir()) == []


def test_attributes_and_documents_are_not_taken_for_each_other(tmp_path: Path) -> None:
    write_documents(f"{tmp_path}/d.parquet", some_documents(1))
    write_attributes(f"{tmp_path}/a.parquet", [("d0", {})], SCORES)
    with pytest.raises(ShardError, match=r"d\.parquet, a shard of documents; needed a shard of attributes"):
        list(read_attributes(f"{tmp_path}/d.parquet"))
    with pytest.raises(ShardError, match=r"a\.parquet, a shard of attributes; needed a shard of documents"):
        list(read_documents(f"{tmp_path}/a.parquet"))
