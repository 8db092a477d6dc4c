"""The safetensors format: eight bytes that say how long the header is, the header in JSON, the tensors' bytes.

In: ranges of a file's bytes, of which nothing is trusted, or tensors that are made one at a time. Out: where each
tensor lies, or a file. The safetensors library writes a file only from all of its tensors at once and reads no URLs;
this module holds one tensor at a time, and only a piece of what it writes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import UserError

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
MAX_HEADER_BYTES = 100_000_000  # as the safetensors library has it
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FIRST_READ_BYTES = 1 << 16  # a header is rarely longer, and a request to a bucket costs more than these
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int  # counted from the file's first byte

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """Some entries of the first dimension."""
        width = prod(self.shape[1:]) * self.dtype.itemsize
        return StoredTensor(self.dtype, (stop - start, *self.shape[1:]), self.start + start * width)


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor that is made when its turn comes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[Any]]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class _Sink(Protocol):
    def write(self, data: Any, /) -> Any: ...


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(place: str, size: int, read: Callable[[int, int], bytes]) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Args:
        place: the file's path or URL, for errors.
        size: how many bytes the file has.
        read: `read(start, stop)` gives those bytes of it.
    """
    first = read(0, min(size, _FIRST_READ_BYTES))
    length = int.from_bytes(first[:8], "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(place, f"{size} bytes with a header of {length}")
    header = first[8 : 8 + length]
    if len(header) < length:
        header += read(8 + len(header), 8 + length)
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(place, f"a header that cannot be read ({error})") from error
    return {name: _checked(place, name, entry, 8 + length, size) for name, entry in entries.items()}


def _checked(place: str, name: str, entry: _Entry, first_byte: int, size: int) -> StoredTensor:
    if entry.dtype not in DTYPES:
        raise UserError(
            f"found {name} of type {entry.dtype} in {place}; needed one of {', '.join(DTYPES)}. Convert the model to "
            "one of them, or take a version that is not quantised."
        )
    start, stop = entry.data_offsets
    tensor = StoredTensor(DTYPES[entry.dtype], entry.shape, first_byte + start)
    if start < 0 or min(entry.shape, default=0) < 0 or tensor.bytes != stop - start or first_byte + stop > size:
        raise _damaged(place, f"{name} at bytes {start} to {stop} of {size - first_byte}, for shape {entry.shape}")
    return tensor


def _damaged(place: str, what: str) -> UserError:
    return UserError(
        f"found {place} damaged: {what}; needed a whole safetensors file. Fetch it again: it may be cut short, or a "
        "Git LFS pointer in place of the file."
    )


def write_tensors(sink: _Sink, tensors: Sequence[TensorToWrite]) -> None:
    """Writes a whole file; each tensor is made when it is written, and let go."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)  # so that each lies aligned to its type
    sink.write(_header(ordered))
    for tensor in ordered:
        for piece in _pieces(tensor.make(), tensor):
            sink.write(piece)


def _header(tensors: Iterable[TensorToWrite]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses files without it
    start = 0
    for tensor in tensors:
        entries[tensor.name] = _Entry(dtype_name(tensor.dtype), tensor.shape, (start, start + tensor.bytes))
        start += tensor.bytes
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _pieces(array: NDArray[Any], tensor: TensorToWrite) -> Iterator[memoryview]:
    if array.shape != tensor.shape:
        raise ValueError(f"{tensor.name} was announced with shape {tensor.shape} and made with {array.shape}")
    whole = np.atleast_1d(array)
    rows = max(1, _PIECE_BYTES * len(whole) // max(tensor.bytes, 1))
    for start in range(0, len(whole), rows):
        piece = np.ascontiguousarray(whole[start : start + rows].astype(tensor.dtype, copy=False))
        yield piece.reshape(-1).view(np.uint8).data


def dtype_name(dtype: np.dtype[Any]) -> str:
    """What safetensors calls a type: BF16."""
    if dtype not in _NAMES:
        raise UserError(
            f"found arrays of type {dtype} to export; needed one of {', '.join(map(str, _NAMES))}. Set the type to "
            "save in, for instance bfloat16."
        )
    return _NAMES[dtype]
