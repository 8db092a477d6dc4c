"""tf.train.Example messages: the wanted features of serialised examples, without protobuf.

Example {1: Features {1: map entries {1: name, 2: Feature {1: bytes_list | 2: float_list | 3: int64_list}}}}; in each
list the values are field 1, packed or one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ponente.store.sources.varints import decode_many, decode_varints
from ponente.store.sources.wanted import Wanted, admits_none, is_numbers, without_none

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KINDS = {_BYTES_LIST: "bytes", _FLOAT_LIST: "floats", _INT64_LIST: "integers"}


class Feature(NamedTuple):
    """One feature of an example, its values still encoded."""

    kind: int
    data: bytes  # the message of the list


class BrokenExampleError(ValueError):
    """Bytes that are not a tf.train.Example, or one that lacks what is wanted."""


def decode_examples(records: Sequence[bytes], wanted: Wanted) -> tuple[dict[str, list[Any]], list[int], dict[int, str]]:
    """The wanted values of the records that have them, the indices of these, and what is wrong with the others."""
    features: list[dict[str, Feature]] = []
    good: list[int] = []
    faults: dict[int, str] = {}
    for index, record in enumerate(records):
        try:
            features.append(wanted_features(record, wanted))
            good.append(index)
        except (ValueError, IndexError) as error:
            faults[index] = _fault(error, wanted)
    try:
        return _columns(features, wanted), good, faults
    except (ValueError, IndexError):
        return _one_by_one(features, good, faults, wanted)


def _one_by_one(
    features: list[dict[str, Feature]], indices: list[int], faults: dict[int, str], wanted: Wanted
) -> tuple[dict[str, list[Any]], list[int], dict[int, str]]:
    values: dict[str, list[Any]] = {name: [] for name in wanted.fields}
    good = []
    for index, one in zip(indices, features, strict=True):
        try:
            for name, some in _columns([one], wanted).items():
                values[name] += some
            good.append(index)
        except (ValueError, IndexError) as error:
            faults[index] = _fault(error, wanted)
    return values, good, faults


def _fault(error: Exception, wanted: Wanted) -> str:
    found = str(error) if isinstance(error, BrokenExampleError) else f"a record that is no tf.train.Example ({error})"
    return (
        f"found {found}; needed a tf.train.Example with {wanted.describe()}. "
        "Name the feature that holds it in the format's config, or write the file again."
    )


def wanted_features(record: bytes, wanted: Wanted) -> dict[str, Feature]:
    """The features that are wanted; raises ValueError or IndexError where the record is broken or lacks one."""
    found: dict[str, Feature] = {}
    names = []
    for begin, end in _messages(record, 0, len(record), 1):
        for entry_begin, entry_end in _messages(record, begin, end, 1):
            name, feature = _entry(record, entry_begin, entry_end)
            names.append(name)
            if name in wanted.fields and feature is not None:
                found[name] = feature
    for name, type_ in wanted.fields.items():
        if name not in found and not admits_none(type_):
            raise BrokenExampleError(f"an example without {name!r} (it has: {', '.join(names) or 'nothing'})")
    return found


def _entry(record: bytes, begin: int, end: int) -> tuple[str, Feature | None]:
    name, feature = "", None
    for field, wire, start, stop in _parts(record, begin, end):
        if field == 1 and wire == _BYTES:
            name = record[start:stop].decode()
        elif field == 2 and wire == _BYTES:
            for kind, list_wire, list_start, list_stop in _parts(record, start, stop):
                if kind in _KINDS and list_wire == _BYTES:
                    feature = Feature(kind, record[list_start:list_stop])
    return name, feature


def _messages(data: bytes, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for field, wire, start, stop in _parts(data, begin, end):
        if field == wanted and wire == _BYTES:
            yield start, stop


def _parts(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, where the value starts and stops."""
    while position < end:
        key, position = _varint(data, position)
        wire = key & 7
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire == _VARINT:
            length = _varint(data, position)[1] - position
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if position + length > end:
            raise ValueError("a field is cut off")
        yield key >> 3, wire, position, position + length
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[position]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
    return value | byte << shift, position + 1


def _columns(features: list[dict[str, Feature]], wanted: Wanted) -> dict[str, list[Any]]:
    return {name: _values([one.get(name) for one in features], name, type_) for name, type_ in wanted.fields.items()}


def _values(features: list[Feature | None], name: str, type_: Any) -> list[Any]:
    values: list[Any] = [None] * len(features)
    packed: list[tuple[int, bytes]] = []
    for index, feature in enumerate(features):
        if feature is None:
            continue
        _check_kind(feature, name, type_)
        if feature.kind == _INT64_LIST and (payload := _packed(feature.data)) is not None:
            packed.append((index, payload))
        else:
            values[index] = _decoded(feature)
    for (index, _), numbers in zip(packed, decode_many([payload for _, payload in packed]), strict=True):
        values[index] = numbers
    return values


def _check_kind(feature: Feature, name: str, type_: Any) -> None:
    plain = without_none(type_)
    is_text = feature.kind == _BYTES_LIST
    if plain is not Any and ((plain is str) != is_text or not (plain is str or is_numbers(plain))):
        raise BrokenExampleError(f"{name!r} as {_KINDS[feature.kind]}")


def _packed(data: bytes) -> bytes | None:
    """The payload of a list that is one packed field, as it usually is."""
    if not data:
        return b""
    if data[0] != 1 << 3 | _BYTES:
        return None
    length, begin = _varint(data, 1)
    return data[begin:] if begin + length == len(data) else None


def _decoded(feature: Feature) -> Any:
    if feature.kind == _BYTES_LIST:
        texts = [feature.data[start:stop].decode() for start, stop in _messages(feature.data, 0, len(feature.data), 1)]
        if len(texts) != 1:
            raise BrokenExampleError(f"{len(texts)} texts in one feature")
        return texts[0]
    pieces = [
        feature.data[start:stop] for field, _, start, stop in _parts(feature.data, 0, len(feature.data)) if field == 1
    ]
    if feature.kind == _FLOAT_LIST:
        return np.frombuffer(b"".join(pieces), "<f4")
    return decode_varints(b"".join(pieces))
