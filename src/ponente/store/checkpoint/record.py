"""What a checkpoint says of itself: the zarr.json of its folder, with a crc32c over the rest.

In: step, arrays and what the caller adds. Out: the bytes of the file, or the metadata, checked as every record is. A
checkpoint is a zarr 3 group `…/step-N` with one array a name; the folder is published whole, so that where its
record can be read, all of it is there.
"""

import re
import sys
from typing import Any

import google_crc32c
import msgspec

from ponente.config.errors import RefusedError, UserError
from ponente.store.formats import FormatError
from ponente.store.paths import absolute, basename, join
from ponente.store.volume import volume_of
from ponente.store.zarr_group import GROUP_FILE, decode_group, encode_group

FORMAT = 1
_STEP = re.compile(r"step-(0|[1-9]\d*)")


class CheckpointError(UserError, ValueError):
    """A checkpoint that cannot be written, or read as it was asked for."""


class ArrayRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One array as the program sees it; a key array lies on disk as the words of its keys."""

    shape: tuple[int, ...]
    dtype: str
    key_impl: str | None = None  # of typed keys: the generator that they are for

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds."""

    step: int
    timestamp: str  # ISO 8601, UTC: when its state was taken
    is_temporary: bool
    arrays: dict[str, ArrayRecord]
    about: dict[str, Any]  # what the caller added


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    crc32c: int  # of `checkpoint` as it stands in the file
    checkpoint: msgspec.Raw


def step_path(folder: str, step: int) -> str:
    """Where the checkpoint of a step lies in the folder of a run."""
    return join(absolute(folder), f"step-{step}")


def step_of(path: str) -> int | None:
    """The step that a folder's name gives; None where it is no name of a checkpoint."""
    match = _STEP.fullmatch(basename(path))
    return int(match[1]) if match else None


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of a checkpoint's zarr.json; what has no form in JSON is refused."""
    try:
        inner = msgspec.json.encode(metadata)
    except (TypeError, ValueError) as error:
        raise RefusedError(
            f"found metadata of step {metadata.step} that JSON cannot hold ({error}); needed dicts with text as keys, "
            "lists, text, numbers and null. Turn the others into these."
        ) from error
    return encode_group(_Note(crc32c=google_crc32c.value(inner), checkpoint=msgspec.Raw(inner)))


def find_metadata(path: str) -> CheckpointMetadata | None:
    """What the checkpoint at `path` holds; None where there is none, an error where its record is damaged."""
    folder = volume_of(path).published_folder(path)
    if folder is None:
        return None
    file = join(folder, GROUP_FILE)
    try:
        data = volume_of(path).read(file)
    except FileNotFoundError:
        return None
    note = decode_group(file, data, _Note, sys.maxsize)
    if note.format > FORMAT:  # no damage, so that nobody may pass over it
        raise CheckpointError(
            f"found {path} in format {note.format}; needed up to {FORMAT}, which this version knows. Upgrade ponente."
        )
    try:
        if google_crc32c.value(bytes(note.checkpoint)) != note.crc32c:
            raise msgspec.ValidationError("its checksum does not match")
        return msgspec.json.decode(note.checkpoint, type=CheckpointMetadata)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{file} cannot be read ({error}); restore it, or remove the checkpoint") from error


def read_metadata(path: str) -> CheckpointMetadata:
    """What the checkpoint at `path` holds."""
    path = absolute(path)
    metadata = find_metadata(path)
    if metadata is None:
        raise CheckpointError(
            f"found no checkpoint at {path}; needed a folder step-N with its {GROUP_FILE}. "
            "Give the path of one; `ls` its parent to see which there are."
        )
    return metadata


def make_permanent(path: str) -> None:
    """Says of a temporary checkpoint that it stays."""
    metadata = read_metadata(path)
    if metadata.is_temporary:
        kept = msgspec.structs.replace(metadata, is_temporary=False)
        folder = volume_of(path).published_folder(path)
        assert folder is not None
        volume_of(path).replace(join(folder, GROUP_FILE), encode_metadata(kept))
