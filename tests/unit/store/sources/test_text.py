"""Plain text: lines or whole files, without byte order marks and carriage returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponente.store.sources.rows import Piece, SourceError
from ponente.store.sources.text import TextDocumentReader, TxtUnit

DATA = b"\xef\xbb\xbf  first\r\n\r\n \t\nsecond \xc3\xa9\n\xff\xfe\nlast\rone"


def test_each_line_that_is_not_blank_is_a_row_with_its_own_number(
    tmp_path: Path, read_urls: Callable[..., Any]
) -> None:
    (tmp_path / "a.txt").write_bytes(DATA)
    found = read_urls(f"{tmp_path}/a.txt", fields={"content": str})
    assert found.values == {"content": ["  first", "second é", "last\rone"]}
    assert (found.rows, found.lines) == ([0, 1, 3], [1, 4, 6])
    (bad,) = found.bad
    assert (bad.line, bad.row) == (5, 2)
    assert "found bytes that are not UTF-8" in bad.error


def test_a_file_may_be_one_document(tmp_path: Path, read_urls: Callable[..., Any]) -> None:
    (tmp_path / "a.txt").write_bytes(DATA.replace(b"\xff\xfe", b""))
    (tmp_path / "b.txt").write_bytes(DATA)
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "d.txt").write_bytes(b"\n d \n")
    found = read_urls(f"{tmp_path}/*.txt", txt_unit=TxtUnit.DOCUMENT)
    assert found.texts == ["  first\n\n \t\nsecond é\n\nlast\rone", "\n d \n"]
    assert (found.rows, found.lines) == ([0, 3], [1, 1])
    assert [(bad.path[-5:], bad.line, bad.row) for bad in found.bad] == [("b.txt", 5, 1), ("c.txt", 0, 2)]


def test_a_document_that_would_fill_memory_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 101)
    piece = Piece(path=f"{tmp_path}/a.txt")
    (rows,) = TextDocumentReader(max_bytes=100).read(piece, {"text": str}, 0)
    assert "longer than 100 bytes" in rows.bad[0].error
    (rows,) = TextDocumentReader(max_bytes=101).read(piece, {"text": str}, 0)
    assert rows.values == {"text": ["x" * 101]}


@pytest.mark.parametrize("fields", [{"messages": list[dict[str, Any]]}, {"a": str, "b": str}, {"input_ids": list[int]}])
@pytest.mark.parametrize("txt_unit", TxtUnit)
def test_text_cannot_be_chats_or_several_fields(
    tmp_path: Path, fields: dict[str, Any], txt_unit: TxtUnit, read_urls: Callable[..., Any]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"found .*a\.txt, which is plain text; needed rows with '"):
        read_urls(f"{tmp_path}/a.txt", fields=fields, txt_unit=txt_unit)
