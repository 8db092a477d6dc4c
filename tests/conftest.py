"""Fixtures for all tests.

Real data lies outside the project, in ../shared/data: a test that wants it skips where ../shared is absent, and fails
where ../shared is there but the data is not.
"""

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
UNPACKED = Path.home() / ".cache" / "ponente-data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("corpora")` is the folder of that archive, unpacked once a machine."""
    return _unpacked


def _unpacked(name: str) -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"wants the archive {name} of {SHARED}/data, and there is no {SHARED}")
    if not (SHARED / "data" / f"{name}.tar.xz").is_file():
        pytest.fail(f"found {SHARED} without data/{name}.tar.xz; restore the archive")
    target = UNPACKED / name
    if not target.is_dir():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED, prefix=".unpacking-") as private:
            subprocess.run([SHARED / "data" / "unpack", private, name], check=True, stdout=subprocess.DEVNULL)
            _rename_unless_there(Path(private) / name, target)
    return target


def _rename_unless_there(private: Path, target: Path) -> None:
    try:
        os.rename(private, target)
    except OSError as error:  # another worker was first
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
