"""Dolma JSON lines: what others write is read whole or refused by file and line; what we write others read."""

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponente.store.documents import Document, read_attributes, write_attributes
from ponente.store.dolma import read_dolma, read_dolma_attributes, span_schema, write_dolma, write_dolma_attributes
from ponente.store.shards import ShardError
from ponente.store.volume import volume_of

ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst"]
COMPRESSED = {".jsonl.gz": "gzip", ".jsonl.zst": "zstd"}
DOCUMENTS = st.builds(
    Document,
    id=st.text(),
    text=st.text(),
    source=st.text(),
    created=st.none() | st.text(),
    added=st.none() | st.text(),
    metadata=st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.floats(0, 1))),
)


def compressed(ending: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, COMPRESSED[ending]) as stream:  # type: ignore[arg-type]
        stream.write(data)
    return sink.getvalue().to_pybytes()


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def numbered(first: int, count: int) -> list[dict[str, str]]:
    return [{"id": f"d{n}", "text": f"text {n} {n * 7919}", "source": "s"} for n in range(first, first + count)]


def read_line(tmp_path: Path, line: bytes) -> Document:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line)
    (document,) = read_dolma(str(path))
    return document


@settings(max_examples=60, deadline=None)
@given(st.lists(DOCUMENTS, max_size=4), st.sampled_from(ENDINGS))
def test_documents_come_back_as_they_were_written(documents: list[Document], ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a{ending}"
        assert write_dolma(path, iter(documents)) == len(documents)
        assert list(read_dolma(path)) == documents


@pytest.mark.parametrize("ending", ENDINGS)
def test_two_readers_of_one_file_do_not_disturb_each_other(folder: str, ending: str) -> None:
    documents = [Document(id=str(number), text="x" * 900 + str(number)) for number in range(3000)]
    write_dolma(f"{folder}/a{ending}", documents)
    pairs = zip(read_dolma(f"{folder}/a{ending}"), read_dolma(f"{folder}/a{ending}"), strict=True)
    assert list(pairs) == [(document, document) for document in documents]


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_documents_make_equal_bytes(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(id=str(number), text="text " * number, metadata={"z": 1, "a": 2}) for number in range(99)]
    for moment, name in enumerate("ab"):
        monkeypatch.setattr("time.time", lambda moment=moment: 1e9 * (moment + 1))
        write_dolma(f"{tmp_path}/{name}{ending}", documents)
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_other_programs_read_what_we_write(tmp_path: Path) -> None:
    document = Document(id="a", text="é\n", source="s", created="2020-01-01", metadata={"k": [1]})
    write_dolma(f"{tmp_path}/a.jsonl.gz", [document, Document(id="b", text="")])
    with gzip.open(tmp_path / "a.jsonl.gz", "rt") as file:
        assert [json.loads(line) for line in file] == [
            {"id": "a", "text": "é\n", "source": "s", "created": "2020-01-01", "metadata": {"k": [1]}},
            {"id": "b", "text": "", "source": "", "metadata": {}},
        ]


@pytest.mark.parametrize("ending", COMPRESSED)
def test_several_members_or_frames_are_read_as_one_file(tmp_path: Path, ending: str) -> None:
    parts = [numbered(0, 5), [], numbered(5, 2000), numbered(2005, 1)]
    data = b"".join(compressed(ending, lines(*part)) for part in parts)
    (tmp_path / f"a{ending}").write_bytes(data)
    assert [document.id for document in read_dolma(f"{tmp_path}/a{ending}")] == [f"d{n}" for n in range(2006)]


def test_a_line_may_continue_in_the_next_member(tmp_path: Path) -> None:
    data = lines(*numbered(0, 2))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data[:40]) + gzip.compress(data[40:]))
    assert [document.id for document in read_dolma(f"{tmp_path}/a.jsonl.gz")] == ["d0", "d1"]


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_truncated_file_is_an_error_that_names_it_wherever_it_was_cut(tmp_path: Path, ending: str) -> None:
    path, first = tmp_path / f"a{ending}", compressed(ending, lines(*numbered(0, 20)))
    whole = first + compressed(ending, lines(*numbered(20, 20)))
    for length in set(range(len(whole))) - {len(first)}:
        path.write_bytes(whole[:length])
        with pytest.raises(ShardError, match=f"a{ending}"):
            list(read_dolma(str(path)))


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("junk", [b"<html>not found</html>", b"\x00" * 600, lines(*numbered(0, 3))])
def test_bytes_that_are_not_compressed_are_an_error_that_names_the_file(
    tmp_path: Path, ending: str, junk: bytes
) -> None:
    path = tmp_path / f"a{ending}"
    for data in (junk, compressed(ending, lines(*numbered(0, 3))) + junk):
        path.write_bytes(data)
        with pytest.raises(ShardError, match=f"a{ending}"):
            list(read_dolma(str(path)))


def test_a_flipped_bit_in_a_gzip_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(lines(*numbered(0, 50)), mtime=0)
    for at in range(10, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ShardError, match=r"a\.jsonl\.gz"):
            list(read_dolma(str(path)))


def test_a_plain_file_without_lines_has_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert list(read_dolma(f"{tmp_path}/a.jsonl")) == []


def test_what_a_line_leaves_out_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "one"}, {"id": None, "text": "two", "source": "web"}))
    assert list(read_dolma(f"{tmp_path}/a.jsonl", source="c4")) == [
        Document(id="a.jsonl:1", text="one", source="c4"),
        Document(id="a.jsonl:2", text="two", source="web"),
    ]


def test_unknown_keys_move_into_metadata_and_stay_there(tmp_path: Path) -> None:
    line = lines({"id": "a", "text": "x", "url": "http://x", "metadata": {"k": 1, "url": "http://x"}, "version": 2})
    document = read_line(tmp_path, line)
    assert document.metadata == {"k": 1, "url": "http://x", "version": 2}
    write_dolma(f"{tmp_path}/b.jsonl", [document])
    assert list(read_dolma(f"{tmp_path}/b.jsonl")) == [document]


def test_byte_order_marks_blank_lines_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\r\n \n{"text": "two"}')
    assert [(document.id, document.text) for document in read_dolma(str(path))] == [
        ("a.jsonl:1", "one"),
        ("a.jsonl:4", "two"),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"id": "a", "text": "cut', "malformed"),
        (b"not json", "malformed"),
        (b'["a"]', "a JSON list, not an object"),
        (b'{"id": "a"}', "it has no text"),
        (b'{"id": "a", "text": null}', "it has no text"),
        (b'{"id": "a", "text": 7}', "text is 7, not a string"),
        (b'{"id": 7, "text": "x"}', "id is 7, not a string"),
        (b'{"text": "x", "created": 2020}', "created is 2020, not a string"),
        (b'{"text": "x", "metadata": [1]}', r"metadata is \[1\], not an object"),
        (b'{"text": "x", "url": 1, "metadata": {"url": 2}}', "url is 1 but metadata.url is 2"),
        (b'{"text": "\xff\xfe"}', "can't decode byte"),
        (b'{"text": "\\ud800"}', "JSON|truncated"),
        (b'{"text": "x", "k": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ],
)
def test_a_bad_line_is_an_error_with_its_file_line_and_fault(tmp_path: Path, line: bytes, found: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "good too"}\n')
    with pytest.raises(ShardError, match=rf"a\.jsonl:2: found .*({found}).*; needed one JSON object"):
        list(read_dolma(f"{tmp_path}/a.jsonl"))


def test_bad_lines_may_be_collected_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\nbad\n{"text": "two"}\n[]\n')
    errors: list[ShardError] = []
    documents = list(read_dolma(f"{tmp_path}/a.jsonl", on_bad_line=errors.append))
    assert [document.text for document in documents] == ["one", "two"]
    assert [str(error).split(": ")[0] for error in errors] == [f"{tmp_path}/a.jsonl:2", f"{tmp_path}/a.jsonl:4"]


def test_a_file_that_is_one_endless_line_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "ok"}\n' + b"x" * 1000))
    with pytest.raises(ShardError, match=r"a\.jsonl\.gz:2: found a line longer than 100 bytes"):
        list(read_dolma(str(path), max_line_bytes=100))
    path.write_bytes(gzip.compress(b'{"text": "ok"}\n'))
    assert len(list(read_dolma(str(path), max_line_bytes=15))) == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "a.gz", "jsonl"])
def test_another_ending_is_an_error_that_lists_those_we_know(tmp_path: Path, name: str) -> None:
    with pytest.raises(ShardError, match=r"\.jsonl, \.jsonl\.gz, \.jsonl\.zst"):
        list(read_dolma(f"{tmp_path}/{name}"))
    with pytest.raises(ShardError, match=r"\.jsonl, \.jsonl\.gz, \.jsonl\.zst"):
        write_dolma(f"{tmp_path}/{name}", [])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_missing_file_is_a_missing_file(folder: str, ending: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"a{ending}"):
        next(read_dolma(f"{folder}/a{ending}"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_document_that_json_cannot_hold_is_an_error_and_nothing_is_published(folder: str, ending: str) -> None:
    good, surrogate = Document(id="good", text="x"), Document(id="bad", text="\ud800")
    for bad in (surrogate, Document(id="bad", text="x", metadata={"k": object()})):
        with pytest.raises(ShardError, match=rf"'bad'.*a{ending}"):
            write_dolma(f"{folder}/out/a{ending}", [good, bad])
    assert volume_of(folder).names(f"{folder}/out") == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_span_attributes_pass_through_shards_and_back(tmp_path: Path, ending: str) -> None:
    records = [
        {"id": "a", "attributes": {"nsfw": [[0, 5, 0.25], [5, 9, 1.0]], "pii": []}},
        {"id": "b", "attributes": {"nsfw": [], "pii": [[2, 3, 0.0]]}},
    ]
    (tmp_path / "in.jsonl").write_bytes(lines(*records))
    rows = list(read_dolma_attributes(f"{tmp_path}/in.jsonl"))
    assert rows[0][1]["nsfw"][0] == {"start": 0, "end": 5, "score": 0.25}
    write_attributes(f"{tmp_path}/a.parquet", rows, span_schema(["nsfw", "pii"]))
    assert write_dolma_attributes(f"{tmp_path}/out{ending}", read_attributes(f"{tmp_path}/a.parquet")) == 2
    assert list(read_dolma_attributes(f"{tmp_path}/out{ending}")) == rows
    if ending == ".jsonl":
        written = (tmp_path / "out.jsonl").read_bytes().splitlines()
        assert [msgspec.json.decode(line) for line in written] == records


@pytest.mark.parametrize("attributes", [{"nsfw": [[0, 5]]}, {"nsfw": [["0", 5, 1.0]]}, {"nsfw": 1}, None])
def test_an_attribute_line_without_spans_is_an_error_with_its_file_and_line(tmp_path: Path, attributes: Any) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"id": "a", "attributes": {}}, {"id": "b", "attributes": attributes}))
    with pytest.raises(ShardError, match=r"a\.jsonl:2: found .*Expected"):
        list(read_dolma_attributes(f"{tmp_path}/a.jsonl"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_real_web_pages_pass_through_every_ending(
    tmp_path: Path, ending: str, shared_data: Callable[[str], Path]
) -> None:
    documents = list(read_dolma(str(shared_data("corpora") / "c4_demo.jsonl")))
    assert len(documents) == 300
    assert documents[0].id == "c4_demo.jsonl:1"
    write_dolma(f"{tmp_path}/a{ending}", documents)
    assert list(read_dolma(f"{tmp_path}/a{ending}")) == documents
