"""Document shards: what is written comes back, in bounded memory, or the file is named in an error."""

import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.store.documents import Document, count_documents, read_documents, write_documents
from ponente.store.dolma import read_dolma
from ponente.store.shards import ShardError
from ponente.store.volume import volume_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.builds(
    Document,
    id=st.text(),
    text=st.text() | st.just("") | st.just("\x00\r\n\u2028\U0001f32c"),
    source=st.text(),
    created=st.none() | st.just("2024-02-29T12:00:00.000Z"),
    added=st.none() | st.just("2026-11-01"),
    metadata=st.dictionaries(st.text(), JSON, max_size=3),
)

STREAM_200_MB = """
import os, sys
from ponente.store.documents import Document, read_documents, write_documents
words = os.urandom(1 << 20).hex()

def documents():
    for number in range(4000):
        start = number * 401 % (len(words) - 50_000)
        yield Document(id=str(number), text=words[start:start + 50_000], source="s")

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

before = peak()
count = write_documents(sys.argv[1], documents())
written = peak()
assert sum(len(document.text) for document in read_documents(sys.argv[1])) == 4000 * 50_000
print(count, written - before, peak() - before)
"""

WRITE_FOR_EVER = """
import itertools, sys
from ponente.store.documents import Document, write_documents

def documents():
    for number in itertools.count():
        if number == 2000:
            print("ready", flush=True)
        yield Document(id=str(number), text="x" * 1000)

write_documents(sys.argv[1], documents(), row_group_bytes=100_000)
"""


def some_documents(count: int) -> list[Document]:
    return [
        Document(id=f"d{number}", text=f"text {number} é " * 20, source="s", metadata={"n": [number, {"deep": None}]})
        for number in range(count)
    ]


def rewrite(path: str, footer: dict[str, str] | None, table: pa.Table | None = None) -> None:
    """Replaces a shard with the same table, or another, under another footer."""
    old = table if table is not None else pq.read_table(path)
    with pq.ParquetWriter(path, old.schema) as writer:
        writer.write_table(old)
        if footer is not None:
            writer.add_key_value_metadata(footer)


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0xFF
    Path(path).write_bytes(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, max_size=5), st.sampled_from([1, 1 << 20]))
def test_documents_come_back_as_they_were_written(documents: list[Document], row_group_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/00000.parquet"
        assert write_documents(path, iter(documents), row_group_bytes=row_group_bytes) == len(documents)
        assert list(read_documents(path)) == documents
        assert count_documents(path) == len(documents)


def test_documents_of_any_size_come_back_through_many_batches_and_row_groups(folder: str) -> None:
    documents = [
        Document(id=str(number), text="x" * (number * number * 7 % 50_000) + "é" * (number % 3))
        for number in range(900)
    ]
    path = f"{folder}/a.parquet"
    write_documents(path, documents, row_group_bytes=1 << 20)
    assert list(read_documents(path, batch_bytes=10_000)) == documents
    assert list(read_documents(path, batch_bytes=1)) == documents


def test_equal_documents_make_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_documents(f"{tmp_path}/{name}.parquet", some_documents(700))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_stream_of_empty_texts_is_cut_into_row_groups_too(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.parquet"
    write_documents(path, (Document(id=str(number), text="") for number in range(20_000)), row_group_bytes=100_000)
    assert pq.read_metadata(path).num_row_groups > 3
    assert [document.id for document in read_documents(path)] == [str(number) for number in range(20_000)]


def test_a_shard_is_plain_zstd_parquet_whose_footer_names_format_version_and_rows(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.parquet"
    write_documents(path, some_documents(3))
    table, metadata = pq.read_table(path), pq.read_metadata(path)
    assert table.column_names == ["id", "text", "source", "created", "added", "metadata"]
    assert json.loads(table["metadata"][1].as_py()) == {"n": [1, {"deep": None}]}
    assert metadata.row_group(0).column(1).compression == "ZSTD"
    footer = {key: metadata.metadata[f"ponente.{key}".encode()] for key in ("format", "version", "rows")}
    assert footer == {"format": b"documents", "version": b"1", "rows": b"3"}


def test_a_writer_whose_documents_fail_publishes_nothing(folder: str) -> None:
    def failing() -> Iterator[Document]:
        yield from some_documents(2000)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        write_documents(f"{folder}/documents/a.parquet", failing(), row_group_bytes=1000)
    assert volume_of(folder).names(f"{folder}/documents") == []


def test_a_writer_that_is_killed_shows_no_shard(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_FOR_EVER, f"{tmp_path}/a.parquet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        process.kill()
    assert not (tmp_path / "a.parquet").exists()


def test_readers_of_one_shard_do_not_disturb_each_other(folder: str) -> None:
    documents, path = some_documents(600), f"{folder}/a.parquet"
    write_documents(path, documents, row_group_bytes=20_000)
    pairs = zip(read_documents(path, batch_bytes=5000), read_documents(path, batch_bytes=7000), strict=True)
    assert list(pairs) == [(document, document) for document in documents]
    outcomes: list[bool] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(list(read_documents(path)) == documents)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_two_hundred_megabytes_are_written_and_read_in_bounded_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STREAM_200_MB, f"{tmp_path}/a.parquet"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, written_bytes, peak_bytes = map(int, output.split())
    assert count == 4000
    assert written_bytes < 150e6
    assert peak_bytes < 180e6  # about 100 of it are imports


@pytest.mark.parametrize("text", ["bad \ud800 text", "\udfff"])
def test_a_lone_surrogate_is_an_error_that_names_the_document(tmp_path: Path, text: str) -> None:
    documents = [Document(id="good", text="x"), Document(id="bad-one", text=text)]
    with pytest.raises(ShardError, match=r"'bad-one'.*a\.parquet.*surrogates"):
        write_documents(f"{tmp_path}/a.parquet", documents)
    with pytest.raises(ShardError, match=r"'bad-two'.*a\.parquet.*surrogates"):
        write_documents(f"{tmp_path}/a.parquet", [Document(id="bad-two", text="x", metadata={"k": text})])
    with pytest.raises(ShardError, match=r"'source'.*a\.parquet"):
        write_documents(f"{tmp_path}/a.parquet", [Document(id="bad-three", text="x", source=text)])


def test_what_a_column_cannot_hold_is_an_error_that_names_it(tmp_path: Path) -> None:
    wrong: Any = [Document(id=7, text="x"), Document(id=None, text="x")]  # type: ignore[arg-type]
    for document in wrong:
        with pytest.raises(ShardError, match=r"column 'id' of .*a\.parquet.*needed string"):
            write_documents(f"{tmp_path}/a.parquet", [document])
    with pytest.raises(ShardError, match=r"metadata of document 'a'.*a\.parquet.*JSON cannot hold"):
        write_documents(f"{tmp_path}/a.parquet", [Document(id="a", text="x", metadata={"k": object()})])


def test_a_truncated_shard_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_documents(str(path), some_documents(50), row_group_bytes=4000)
    whole = path.read_bytes()
    for length in [0, 3, 4, 11, 12, *range(13, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ShardError, match=r"a\.parquet truncated or corrupt"):
            list(read_documents(str(path)))
        with pytest.raises(ShardError, match=r"a\.parquet truncated or corrupt"):
            count_documents(str(path))


def test_a_flipped_bit_never_changes_a_document_silently(tmp_path: Path) -> None:
    path, documents = tmp_path / "a.parquet", some_documents(30)
    write_documents(str(path), documents, row_group_bytes=4000)
    whole, refused, generator = path.read_bytes(), 0, random.Random(0)
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            assert list(read_documents(str(path))) == documents
        except ShardError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(whole) / 3 / 2


def test_counting_reads_the_footer_only(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.parquet"
    write_documents(path, some_documents(500))
    flip(path, 2000)
    assert count_documents(path) == 500
    with pytest.raises(ShardError, match=r"a\.parquet truncated or corrupt"):
        list(read_documents(path))


def test_a_missing_shard_is_a_missing_file(folder: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
        next(read_documents(f"{folder}/a.parquet"))
    with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
        count_documents(f"{folder}/a.parquet")


@pytest.mark.parametrize(
    ("footer", "complaint"),
    [
        ({"format": "documents", "version": "2", "rows": "3"}, "version 2 .* up to 1. Upgrade ponente"),
        ({"format": "documents", "version": "1", "rows": "4"}, "found 3 rows in .*needed 4"),
        ({"format": "documents", "version": "1"}, "truncated or corrupt"),
        ({"format": "documents", "version": "one", "rows": "3"}, "truncated or corrupt"),
        ({"format": "attributes", "version": "1", "rows": "3"}, "a shard of attributes; needed a shard of documents"),
    ],
)
def test_a_footer_that_does_not_fit_is_an_error_that_says_how(
    tmp_path: Path, footer: dict[str, str], complaint: str
) -> None:
    path = f"{tmp_path}/a.parquet"
    write_documents(path, some_documents(3))
    rewrite(path, {f"ponente.{key}": value for key, value in footer.items()})
    with pytest.raises(ShardError, match=complaint) as caught:
        list(read_documents(path))
    assert path in str(caught.value)
    with pytest.raises(ShardError, match=complaint):
        count_documents(path)


def test_a_foreign_parquet_file_is_an_error_that_says_how_to_convert_it(tmp_path: Path) -> None:
    path = f"{tmp_path}/foreign.parquet"
    rewrite(path, None, pa.table({"text": ["a"], "url": ["b"]}))
    for read in (count_documents, lambda path: list(read_documents(path))):
        with pytest.raises(ShardError, match=r"foreign\.parquet.*columns text, url.*write_documents"):
            read(path)


def test_a_shard_with_other_columns_than_its_footer_promises_is_an_error(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.parquet"
    footer = {"ponente.format": "documents", "ponente.version": "1", "ponente.rows": "1"}
    rewrite(path, footer, pa.table({"id": ["a"], "text": [7]}))
    with pytest.raises(ShardError, match=r"a\.parquet with columns \['id', 'text'\]"):
        list(read_documents(path))


def test_real_web_pages_come_back_as_they_were(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    file = shared_data("corpora") / "c4_demo.jsonl"
    expected = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    path = f"{tmp_path}/documents/00000.parquet"
    assert write_documents(path, read_dolma(str(file), source="c4"), row_group_bytes=100_000) == 300
    documents = list(read_documents(path))
    assert [document.text for document in documents] == expected
    assert len({document.id for document in documents}) == 300
    assert {document.source for document in documents} == {"c4"}
