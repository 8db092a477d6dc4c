"""Arrays on disk: zarr 3 that others read, equal bytes for equal arrays, damage and full disks named."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ponente.config.errors import RefusedError
from ponente.store.tensors import TensorError, naming_failure, open_array, tensor_store, write_array, write_context


def read_array(path: str) -> NDArray[Any]:
    with naming_failure(path):
        return np.asarray(open_array(path).read().result())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64", "float32"])
@pytest.mark.parametrize("length", [0, 1, 5, 1 << 15, (1 << 15) + 1, 200_000])
def test_plain_zarr_reads_what_is_written(tmp_path: Path, dtype: str, length: int) -> None:
    array = np.random.default_rng(length).integers(0, 200, length).astype(dtype)
    write_array(str(tmp_path / "a"), array, write_context())
    found = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found[:], array)
    np.testing.assert_array_equal(read_array(str(tmp_path / "a")), array)


def test_equal_arrays_are_equal_files(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 50_000, 300_000).astype("uint16")
    for name in "ab":
        write_array(str(tmp_path / name), array, write_context())
    files = [
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in "ab"
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 2  # metadata, and one file of data


def test_an_array_may_be_changed_as_soon_as_it_is_written(tmp_path: Path) -> None:
    context = write_context()
    array = np.arange(100_000, dtype="uint32")
    write_array(str(tmp_path / "a"), array, context)
    array[:] = 7
    for one in (context, None):
        found = open_array(str(tmp_path / "a"), one).read().result()
        np.testing.assert_array_equal(found, np.arange(100_000))


@given(start=st.integers(0, 100_000), length=st.integers(0, 100_000))
@settings(max_examples=30, deadline=None)
def test_any_span_can_be_read(tmp_path_factory: pytest.TempPathFactory, start: int, length: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "span"
    array = np.arange(100_000, dtype="uint32")
    if not folder.exists():
        write_array(str(folder), array, write_context())
    found = open_array(str(folder))[start : min(100_000, start + length)].read().result()
    np.testing.assert_array_equal(found, array[start : start + length])


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    write_array(str(tmp_path / "a"), np.arange(100_000, dtype="uint32"), write_context())
    data = tmp_path / "a" / "c" / "0"
    damaged = bytearray(data.read_bytes())
    damaged[1000] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(TensorError, match="damaged"):
        read_array(str(tmp_path / "a"))


def test_a_lost_file_is_not_read_as_zeros(tmp_path: Path) -> None:
    write_array(str(tmp_path / "a"), np.zeros(10, "uint8"), write_context())
    assert read_array(str(tmp_path / "a")).tolist() == [0] * 10
    (tmp_path / "a" / "c" / "0").unlink()
    with pytest.raises(TensorError, match="missing or damaged"):
        read_array(str(tmp_path / "a"))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=str(tmp_path / "none")):
        open_array(str(tmp_path / "none"))


def test_a_place_that_tensorstore_cannot_reach_is_refused() -> None:
    with pytest.raises(RefusedError, match="not yet: memory://"):
        tensor_store("memory://cache")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("wants to mount a small disk, which needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_an_os_error(full_disk: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 1 << 31, 1_000_000).astype("uint32")
    with pytest.raises(OSError) as caught:
        write_array(str(full_disk / "a"), noise, write_context())
    assert caught.value.errno == errno.ENOSPC
