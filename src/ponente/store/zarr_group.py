"""The zarr.json of a zarr 3 group of ours: what a folder of arrays says of itself, under `attributes.ponente`.

In: a record with a format version. Out: the bytes of the file, or the record, checked as every record is.
"""

from typing import Generic, Protocol, TypeVar

import msgspec

from ponente.store.formats import decode_record

GROUP_FILE = "zarr.json"


class Versioned(Protocol):
    """A record that carries its format."""

    @property
    def format(self) -> int: ...


Note = TypeVar("Note", bound=Versioned)


class _Attributes(msgspec.Struct, Generic[Note], frozen=True):
    ponente: Note


class _Group(msgspec.Struct, Generic[Note], frozen=True):
    attributes: _Attributes[Note]
    zarr_format: int = 3
    node_type: str = "group"

    @property
    def format(self) -> int:
        return self.attributes.ponente.format


def encode_group(note: Versioned) -> bytes:
    """The file of a group with this note."""
    return msgspec.json.encode(_Group(_Attributes(note)))


def decode_group(path: str, data: bytes, kind: type[Note], known: int) -> Note:
    """The note in the file of a group; as `decode_record` refuses what is damaged or newer than `known`."""
    decoder: msgspec.json.Decoder[_Group[Note]] = msgspec.json.Decoder(_Group[kind])  # type: ignore[valid-type]
    return decode_record(path, data, decoder.decode, known).attributes.ponente
