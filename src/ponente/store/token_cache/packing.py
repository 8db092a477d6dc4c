"""Stored packings: which spans of a finished cache are the rows of training, where no formula says it.

In: spans of tokens. Out: a zarr 3 group `CACHE/packings/KEY` with `starts` and `stops`, keyed by the cache, the length
of a row and the policy. A packing follows from its key, so one that cannot be stored can be made again.
"""

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from ponente.store.paths import join
from ponente.store.tensors import TensorError, naming_failure, open_array, write_array, write_context
from ponente.store.volume import publishing_folder, volume_of
from ponente.store.zarr_group import GROUP_FILE, decode_group, encode_group

PACKINGS = "packings"
FORMAT = 1
Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


class PackingKey(msgspec.Struct, frozen=True, kw_only=True):
    """All that a packing follows from."""

    format: int = FORMAT
    cache: str  # the digest of its ledger
    length: int  # tokens a row
    max_documents: int  # a row
    over_length: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def read_packing(cache: str, key: PackingKey) -> Spans | None:
    """The stored packing of a cache; None where there is none."""
    name = join(cache, PACKINGS, key.digest)
    folder = volume_of(cache).published_folder(name) or name
    place = join(folder, GROUP_FILE)
    try:
        data = volume_of(cache).read(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    decode_group(place, data, PackingKey, FORMAT)
    starts, stops = (_read(join(folder, name)) for name in ("starts", "stops"))
    if len(starts) != len(stops):
        raise TensorError(
            f"found {len(starts)} starts and {len(stops)} stops in {folder}; needed as many of both. Remove the folder."
        )
    return starts, stops


def _read(path: str) -> NDArray[np.int64]:
    with naming_failure(path):
        return np.asarray(open_array(path).read().result())


def write_packing(cache: str, key: PackingKey, spans: Spans) -> None:
    """Stores a packing; one that is there already stays."""
    context = write_context()
    with publishing_folder(join(cache, PACKINGS, key.digest)) as private:
        for name, values in zip(("starts", "stops"), spans, strict=True):
            write_array(join(private, name), values, context)
        volume_of(private).replace(join(private, GROUP_FILE), encode_group(key))
