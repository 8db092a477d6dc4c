"""Places as strings: a local path ("/data/x") or a URL ("memory://x", later "s3://…").

In: what users type, in any form. Out: one absolute form a place, so that a trailing slash, `./` or `file://` never
makes two names of one thing. Also brace and glob expansion, and the one prefix under which a graph keeps its data.
"""

import os
import posixpath
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePath

PREFIX_VARIABLE = "PONENTE_PREFIX"
DEFAULT_PREFIX = "./ponente-runs"
PRIVATE_MARK = ".part-"  # what is not published yet lies under a name that starts so
_GLOB_MARKS = "*?["


def protocol_of(path: str) -> str:
    """The protocol of a place: "file" for local paths, else what stands before "://"."""
    head, found, _ = path.partition("://")
    return head if found else "file"


def absolute(path: str | PurePath, base: str | None = None) -> str:
    """The one absolute form of a place.

    Args:
        path: a path or URL; relative ones are taken from `base`, by default the working directory.
        base: an absolute place.

    Example: `absolute("file:///data//x/")`, `absolute("/data/x/.")` and `absolute("x", "/data")` are all "/data/x".
    """
    text = str(path)
    if not text:
        raise ValueError("found an empty path where a place was needed; use '.' for the working directory")
    protocol, found, rest = text.partition("://")
    if found and protocol not in ("file", "local"):
        clean = posixpath.normpath("/" + rest).lstrip("/")
        return f"{protocol}://{clean}"
    if found:
        text = rest
    text = os.path.expanduser(text)
    if not os.path.isabs(text) and base is not None:
        return join(base, text)
    return "/" + os.path.abspath(text).replace(os.sep, "/").lstrip("/")  # POSIX lets abspath keep two slashes


def join(path: str, *parts: str) -> str:
    """`path` with `parts` below it, in absolute form; `..` may not lead out of `path`."""
    protocol, found, rest = path.partition("://")
    root = posixpath.normpath("/" + (rest if found else path)).replace("//", "/")
    whole = root
    for part in parts:
        whole = posixpath.normpath(f"{whole.rstrip('/')}/{part}")
    if whole != root and not whole.startswith(root.rstrip("/") + "/"):
        raise ValueError(f"found {'/'.join(parts)!r}, which leads out of {path}; needed a place below it")
    return f"{protocol}://{whole.lstrip('/')}" if found else whole


def relative(path: str, folder: str) -> str | None:
    """`path` as seen from `folder`, or None where it is not below it."""
    if path == folder:
        return ""
    start = folder if folder.endswith("/") else folder + "/"
    return path[len(start) :] if path.startswith(start) else None


def parent(path: str) -> str:
    """The folder that holds `path`."""
    protocol, found, rest = path.partition("://")
    if found:
        return f"{protocol}://{posixpath.dirname(rest)}"
    return posixpath.dirname(path)


def basename(path: str) -> str:
    """The last part of `path`."""
    return posixpath.basename(path.rstrip("/"))


def resolve_prefix(flag: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The prefix in force, made absolute: `--prefix`, else PONENTE_PREFIX, else ./ponente-runs."""
    variables = os.environ if environ is None else environ
    return absolute(flag or variables.get(PREFIX_VARIABLE) or DEFAULT_PREFIX)


def expand(patterns: str | PurePath | Iterable[str | PurePath]) -> list[str]:
    """The files that patterns mean, in absolute form: braces in their order, each glob sorted.

    Dot-named files and folders (records, unfinished work) match only where a pattern spells the dot.

    Example: `expand("data/{00..03}.jsonl")` has four entries; `expand("data/*.jsonl")` those that are there.

    Raises:
        FileNotFoundError: a glob matches nothing. (A plain path is passed through: its reader names it if missing.)
    """
    from braceexpand import braceexpand

    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str | PurePath) else patterns:
        try:
            alternatives = list(braceexpand(str(pattern)))
        except ValueError as error:
            raise ValueError(
                f"found {str(pattern)!r} with braces that do not pair; write {{a,b}} or {{1..9}}"
            ) from error
        for alternative in alternatives:
            found += _glob(alternative) if _is_glob(alternative) else [absolute(alternative)]
    return found


def _is_glob(text: str) -> bool:
    return any(mark in text for mark in _GLOB_MARKS)


def _glob(pattern: str) -> list[str]:
    import fsspec

    whole = absolute(pattern)
    protocol, parts = protocol_of(whole), whole.split("/")
    first = next(index for index, part in enumerate(parts) if _is_glob(part))
    spelt = [part for part in parts[first:] if part.startswith(".")]
    filesystem, inner = fsspec.core.url_to_fs(whole)
    infos = filesystem.glob(inner, detail=True)
    names = [str(name) for name, info in infos.items() if info["type"] != "directory"]
    matches = [name if protocol == "file" else absolute(f"{protocol}://{name}") for name in names]
    visible = [match for match in matches if _is_visible(match.split("/")[first:], spelt)]
    if not visible:
        raise FileNotFoundError(f"found no file that matches {pattern!r}; check the pattern and its folder")
    return sorted(visible)


def _is_visible(parts: list[str], spelt: list[str]) -> bool:
    dotted = [part for part in parts if part.startswith(".")]
    return all(any(fnmatchcase(part, pattern) for pattern in spelt) for part in dotted)
