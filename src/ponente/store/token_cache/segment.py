"""A segment: some rows of a cache as a folder of columns, written privately and published whole.

In: flat columns with offsets. Out: a zarr 3 group `segments/UUUUUU-SSSS` with one array a column, `offsets`, and in the
group's attributes what the segment holds and where in its unit the next one begins. Rows that could not be read or
encoded lie beside the columns in quarantine.jsonl.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.store.paths import join
from ponente.store.sources.source import BadRow
from ponente.store.tensors import write_array
from ponente.store.token_cache.ledger import FORMAT, QUARANTINE, SEGMENTS, CacheError, CacheLedger
from ponente.store.volume import publishing_folder, volume_of
from ponente.store.zarr_group import GROUP_FILE, decode_group, encode_group

OFFSETS = "offsets"
_NAME = re.compile(r"(\d{6,})-(\d{4,})")


class SegmentNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment says of itself."""

    format: int = FORMAT
    rows: int
    tokens: int
    next_row: int  # the row of its unit at which the next segment begins
    is_last: bool  # of its unit
    empty_rows: int
    bad_rows: int


def segment_name(unit: int, position: int) -> str:
    """The name of a unit's segment."""
    return f"{unit:06d}-{position:04d}"


def segment_path(cache: str, name: str) -> str:
    """The name of a segment, whole."""
    return join(cache, SEGMENTS, name)


def segment_folder(cache: str, name: str) -> str:
    """Where the files of a segment lie, or would lie."""
    path = segment_path(cache, name)
    return volume_of(cache).published_folder(path) or path


def published_segments(cache: str) -> dict[tuple[int, int], str]:
    """The segments that are there, by unit and position, in order."""
    names = volume_of(cache).names(join(cache, SEGMENTS))
    found = {(int(match[1]), int(match[2])): name for name in names if (match := _NAME.fullmatch(name))}
    return dict(sorted(found.items()))


def check_segments(cache: str, ledger: CacheLedger) -> None:
    """Raises if a segment of a finished cache is not there."""
    there = set(published_segments(cache).values())
    missing = [segment.name for segment in ledger.segments if segment.name not in there]
    if missing:
        raise CacheError(
            f"found {cache} without {len(missing)} of its {len(ledger.segments)} segments, such as {missing[0]}; "
            "needed all of them. Restore the cache from a copy, or remove it and build it again."
        )


def find_note(cache: str, name: str) -> SegmentNote | None:
    """What a segment holds; None while it is not published."""
    path = join(segment_folder(cache, name), GROUP_FILE)
    try:
        data = volume_of(cache).read(path)
    except FileNotFoundError:
        return None
    return decode_group(path, data, SegmentNote, FORMAT)


def notes_of_unit(cache: str, unit: int) -> Iterator[tuple[str, SegmentNote]]:
    """The published segments of a unit from the first on, up to its last or to the first that is not there yet."""
    for position in count():
        name = segment_name(unit, position)
        note = find_note(cache, name)
        if note is None:
            return
        yield name, note
        if note.is_last:
            return


def read_note(cache: str, name: str) -> SegmentNote:
    """What a published segment holds."""
    note = find_note(cache, name)
    if note is None:
        raise CacheError(
            f"found {segment_path(cache, name)} without its zarr.json; needed a whole segment. "
            "Restore the folder from a copy, or remove the cache and build it again."
        )
    return note


def read_quarantine(cache: str, name: str) -> bytes:
    """The lines of a segment's quarantine; none where nothing was bad."""
    try:
        return volume_of(cache).read(join(segment_folder(cache, name), QUARANTINE))
    except FileNotFoundError:
        return b""


def write_segment(
    cache: str,
    name: str,
    columns: Mapping[str, NDArray[Any]],
    offsets: NDArray[np.int64],
    note: SegmentNote,
    bad: Sequence[BadRow],
    context: ts.Context,
) -> None:
    """Publishes a segment; one of this name that is there already stays (its bytes are the same)."""
    with publishing_folder(segment_path(cache, name)) as private:
        for column, values in columns.items():
            write_array(join(private, column), values, context)
        write_array(join(private, OFFSETS), offsets, context)
        volume = volume_of(private)
        if bad:
            lines = b"".join(msgspec.json.encode(row) + b"\n" for row in bad)
            volume.replace(join(private, QUARANTINE), lines)
        volume.replace(join(private, GROUP_FILE), encode_group(note))
