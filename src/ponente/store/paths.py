"""Places as strings: a local path ("/data/x") or a URL ("s3://bucket/x", "memory://x").

In: what users type, in any form. Out: one absolute form a place, so that a trailing slash, `./` or `file://` never
makes two names of one thing; and the one prefix under which a graph keeps its data.
"""

import os
import posixpath
import secrets
from collections.abc import Mapping
from pathlib import PurePath

from ponente.config.errors import RefusedError

PREFIX_VARIABLE = "PONENTE_PREFIX"
DEFAULT_PREFIX = "./ponente-runs"
PRIVATE_MARK = ".part-"  # what is not published yet lies under a name that starts so


def protocol_of(path: str) -> str:
    """The protocol of a place: "file" for local paths, else what stands before "://"."""
    if path.startswith("/"):
        return "file"
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
        raise RefusedError("found an empty path where a place was needed; use '.' for the working directory")
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


def below(folder: str, name: str) -> str:
    """`name` in `folder`, both clean already; right for roots ("/", "memory://") too."""
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def join(path: str, *parts: str) -> str:
    """`path` with `parts` below it, in absolute form; `..` may not lead out of `path`."""
    protocol, found, rest = path.partition("://")
    root = posixpath.normpath("/" + (rest if found else path)).replace("//", "/")
    whole = root
    for part in parts:
        whole = posixpath.normpath(f"{whole.rstrip('/')}/{part}")
    if whole != root and not whole.startswith(root.rstrip("/") + "/"):
        raise RefusedError(f"found {'/'.join(parts)!r}, which leads out of {path}; needed a place below it")
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


def private_path(path: str) -> str:
    """A fresh private place beside `path`, with the same last name, to be published there later."""
    return join(parent(path), PRIVATE_MARK + secrets.token_hex(6), basename(path))


def resolve_prefix(flag: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The prefix in force, made absolute: `--prefix`, else PONENTE_PREFIX, else ./ponente-runs."""
    variables = os.environ if environ is None else environ
    return absolute(flag or variables.get(PREFIX_VARIABLE) or DEFAULT_PREFIX)
