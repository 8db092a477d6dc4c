"""From the urls of a config to files that are there, with their sizes, before any work begins."""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import fsspec

from ponente.store.expansion import expand, numbers_in_order
from ponente.store.paths import absolute, protocol_of, relative
from ponente.store.sources.readers import ending_of, known_endings
from ponente.store.sources.rows import SourceError

_THREADS = 16
_INDEX, _TOKENS = ".idx", ".bin"
_TAGS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "modified", "created")

logger = logging.getLogger(__name__)
Given = TypeVar("Given")
Made = TypeVar("Made")


class SourceFile(NamedTuple):
    """A file and its state."""

    path: str
    size: int
    modified: str  # a time or an etag, "" where the place knows neither


def resolve(urls: Sequence[str]) -> list[SourceFile]:
    """The files that urls mean, in order: braces, globs and folders are expanded, Megatron pairs become their .bin.

    Raises:
        SourceError: something is missing, matches nothing, or has an ending that nobody reads.
    """
    try:
        places = expand(urls)
    except (FileNotFoundError, ValueError, ImportError) as error:
        raise SourceError(f"{error}; needed urls of files that are there. Correct the url in the config.") from error
    try:
        files = [file for found in in_threads(_files_at, places) for file in found]
    except ImportError as error:
        raise SourceError(f"{error}; needed the package that reads such urls. Install it.") from error
    for file in files:
        if ending_of(file.path) is None:
            raise SourceError(
                f"found {file.path}, whose ending is not known; needed one of: {', '.join(known_endings())}. "
                "Rename it, narrow the url to the data files, or teach its format with "
                "ponente.store.sources.readers.register_reader."
            )
    return _without_pairs(files)


def state_of(path: str) -> SourceFile:
    """The state of one file; FileNotFoundError where there is none."""
    if protocol_of(path) == "file":
        found = os.stat(path)
        return SourceFile(path, found.st_size, str(found.st_mtime_ns))
    filesystem, inner = fsspec.core.url_to_fs(path)
    return _with_state(path, filesystem.info(inner))


def index_path(path: str) -> str:
    """The .idx that belongs to the .bin of a Megatron pair."""
    return path.removesuffix(_TOKENS) + _INDEX


def in_threads(function: Callable[[Given], Made], values: Iterable[Given]) -> list[Made]:
    """`function` of each value, in order, a few at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, values))


def _with_state(path: str, info: dict[str, Any]) -> SourceFile:
    tag = next((str(info[key]) for key in _TAGS if info.get(key) is not None), "")
    return SourceFile(path, int(info.get("size") or 0), tag)


def _files_at(place: str) -> list[SourceFile]:
    filesystem, inner = fsspec.core.url_to_fs(place)
    if filesystem.isdir(inner):
        return _files_in(place, filesystem, inner)
    if place.endswith(_INDEX):
        place = place.removesuffix(_INDEX) + _TOKENS
    elif ending_of(place) is None and filesystem.exists(inner + _INDEX):
        place += _TOKENS
    if place.endswith(_TOKENS) and not filesystem.exists(index_path(place)):
        raise SourceError(
            f"found {place} without the .idx beside it; needed both files of a Megatron pair. Copy its .idx there."
        )
    try:
        return [state_of(place)]
    except FileNotFoundError as error:
        raise SourceError(
            f"found no file {place}; needed each url to be there before work begins. Correct the url, or copy the file."
        ) from error


def _files_in(folder: str, filesystem: Any, inner: str) -> list[SourceFile]:
    found = filesystem.find(inner, detail=True)
    protocol = protocol_of(folder)
    paths = {name if protocol == "file" else absolute(f"{protocol}://{name}"): info for name, info in found.items()}
    shown = (path for path in paths if "/." not in f"/{relative(path, folder)}")
    visible = sorted(shown, key=numbers_in_order)
    known = [path for path in visible if ending_of(path) is not None]
    if not known:
        raise SourceError(
            f"found folder {folder} without a file to read; needed some with one of: {', '.join(known_endings())}. "
            "Give the folder that holds the data."
        )
    others = [path for path in visible if ending_of(path) is None and not path.endswith(_INDEX)]
    if others:
        logger.warning("%s: %d of its files are no data and are left out, such as %s", folder, len(others), others[0])
    if protocol == "file":
        return in_threads(state_of, known)
    return [_with_state(path, paths[path]) for path in known]


def _without_pairs(files: list[SourceFile]) -> list[SourceFile]:
    """Each file once for each time it was named, but a .bin once where its .idx was named too."""
    kept: list[SourceFile] = []
    seen: set[str] = set()
    for file in files:
        if file.path in seen and file.path.endswith(_TOKENS):
            continue
        if file.path in seen:
            logger.warning("%s is named twice by the urls; its rows will be there twice", file.path)
        seen.add(file.path)
        kept.append(file)
    return kept
