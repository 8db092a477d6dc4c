"""Arrays on disk: zarr 3 through TensorStore, one file an array, in small checksummed chunks.

In: a place as `store.paths` writes it, and a NumPy array. Out: a zarr 3 array that any zarr library reads. What
TensorStore raises becomes what users can act on: a full disk is an OSError, damage is a TensorError with the file.
"""

import errno
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.config.errors import RefusedError, UserError
from ponente.store.paths import protocol_of
from ponente.store.remote import PROTOCOLS, key_value_store

CHUNK_ELEMENTS = 1 << 14  # read whole to get at one element: small enough for rows in random order
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CHECKSUM = {"name": "crc32c"}
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")


class TensorError(UserError, ValueError):
    """An array that cannot be read: missing, damaged or not an array of ours."""


def tensor_store(path: str) -> dict[str, Any]:
    """The TensorStore key-value store of a place; refuses places that TensorStore cannot reach."""
    protocol = protocol_of(path)
    if protocol in PROTOCOLS:
        return key_value_store(path)
    if protocol != "file":
        raise RefusedError(
            f"found {path}, where arrays cannot be kept (not yet: {protocol}://); needed a local folder, or a bucket. "
            "Give one, such as data.cache_dir: cache/"
        )
    return {"driver": "file", "path": path}


def write_context() -> ts.Context:
    """A context for writing what is published, and synced, as a whole later."""
    return ts.Context({"file_io_sync": False, "data_copy_concurrency": {"limit": 1}})


def write_array(path: str, array: NDArray[Any], context: ts.Context, *, chunk_elements: int = CHUNK_ELEMENTS) -> None:
    """Writes a one-dimensional array as a new zarr 3 array at `path`: equal bytes for equal arrays."""
    chunk = min(chunk_elements, max(1, len(array)))
    shard = max(1, math.ceil(len(array) / chunk)) * chunk
    sharding = {
        "chunk_shape": [chunk],
        "codecs": [_BYTES, _compression(array.dtype), _CHECKSUM],
        "index_codecs": [_BYTES, _CHECKSUM],
    }
    spec = {
        "driver": "zarr3",
        "kvstore": tensor_store(path),
        "store_data_equal_to_fill_value": True,  # or a lost file would look like zeros
        "metadata": {
            "shape": [len(array)],
            "data_type": array.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "fill_value": 0,
        },
    }
    with naming_failure(path):
        tensor = ts.open(spec, create=True, context=context).result()
        if len(array):  # encoded where it lies, not from a copy: nobody changes it before this returns
            tensor.write(array, can_reference_source_data_indefinitely=True).result()


def _compression(dtype: np.dtype[Any]) -> dict[str, Any]:
    """LZ4, quick to write and to read in any order; the bytes of wide numbers lie apart, for the high ones repeat."""
    shuffle = "shuffle" if dtype.itemsize > 2 else "noshuffle"
    parameters = {"cname": "lz4", "clevel": 5, "shuffle": shuffle, "typesize": dtype.itemsize, "blocksize": 0}
    return {"name": "blosc", "configuration": parameters}


def open_array(path: str, context: ts.Context | None = None) -> ts.TensorStore:
    """Opens a zarr 3 array for reading; nothing of its data is read yet."""
    with naming_failure(path):
        return begin_open_array(path, context or ts.Context()).result()


def begin_open_array(path: str, context: ts.Context) -> "ts.Future[ts.TensorStore]":
    """Begins to open a zarr 3 array for reading; wait for it within `naming_failure`."""
    spec = {"driver": "zarr3", "kvstore": tensor_store(path), "fill_missing_data_reads": False}
    return ts.open(spec, read=True, context=context)


@contextmanager
def naming_failure(path: str) -> Iterator[None]:
    """Turns TensorStore's errors about a place into an OSError (disk) or a TensorError (missing or damaged)."""
    try:
        yield
    except ValueError as error:
        code = _OS_ERROR.search(str(error))
        if code and int(code.group(1)) != errno.ENOENT:
            number = int(code.group(1))
            raise OSError(number, os.strerror(number), path) from error
        raise TensorError(
            f"found {path} missing or damaged ({error}); needed a whole zarr 3 array. "
            "Restore it from a copy, or remove what holds it and build that again."
        ) from error
