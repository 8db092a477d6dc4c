"""Fixtures for the tests of store/: a folder of its own for each test, on each kind of volume."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponente.store.volume import volume_of


@pytest.fixture
def memory_folder() -> Iterator[str]:
    """A folder of memory:// that no other test uses."""
    folder = f"memory://test-{secrets.token_hex(6)}"
    yield folder
    volume_of(folder).remove(folder)


@pytest.fixture(params=["local", "memory", "bucket", "gs_bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder on each kind of volume in turn."""
    if request.param == "local":
        return str(tmp_path)
    return str(request.getfixturevalue("memory_folder" if request.param == "memory" else request.param))
