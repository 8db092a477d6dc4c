"""How much lies below a place, and when it was written: on disks and in buckets."""

import os
import time
from pathlib import Path

import pytest

from ponente.store.usage import last_written, size_of
from ponente.store.volume import volume_of


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_files_are_added_up_and_the_newest_one_tells_the_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path) if kind == "disk" else request.getfixturevalue("bucket")
    assert (size_of(f"{place}/none"), last_written(f"{place}/none")) == (0, None)
    for name, count in (("a", 3), ("inner/b", 4)):
        volume_of(place).make_folder(f"{place}/inner")
        volume_of(place).replace(f"{place}/{name}", bytes(count))
    assert (size_of(place), size_of(f"{place}/inner"), size_of(f"{place}/a")) == (7, 4, 3)
    written = last_written(place)
    assert written is not None and abs(time.time() - written) < 100


def test_the_newest_file_counts_and_not_its_folder(tmp_path: Path) -> None:
    for name, when in (("old", 1000), ("older", 500)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (when, when))
    assert last_written(str(tmp_path)) == 1000
