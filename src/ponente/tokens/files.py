"""The files of a tokenizer's folder, wherever it lies: a local path or any fsspec URL."""

from contextlib import suppress

import fsspec

from ponente.config.errors import RefusedError, UserError
from ponente.store.paths import absolute, basename, join, parent
from ponente.store.tokenizer_files import TOKENIZER_FILES
from ponente.store.volume import volume_of


def read_folder(place: str) -> dict[str, bytes] | None:
    """The bytes of the tokenizer's files in `place` (a folder, or a tokenizer.json in one); None where nothing is.

    Example: `read_folder("s3://bucket/models/mine")["tokenizer.json"]`
    """
    folder = absolute(place)
    if basename(folder) == "tokenizer.json":
        folder = parent(folder)
    with suppress(RefusedError):  # a protocol that cannot hold a graph can still be read
        folder = volume_of(folder).published_folder(folder) or folder
    try:
        filesystem, path = fsspec.core.url_to_fs(folder)
        if not filesystem.isdir(path):
            return None
        names = {basename(str(found)) for found in filesystem.ls(path, detail=False)}
        return {name: filesystem.cat_file(f"{path.rstrip('/')}/{name}") for name in TOKENIZER_FILES if name in names}
    except FileNotFoundError:
        return None
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"found that {place} could not be read ({type(error).__name__}: {error}); needed a folder with a "
            "tokenizer.json; check the place and the credentials, or copy the folder to this machine and give its path"
        ) from error


def read_text(place: str) -> str:
    """The text of one file at a path or URL; FileNotFoundError where there is none."""
    filesystem, path = fsspec.core.url_to_fs(absolute(place))
    data: bytes = filesystem.cat_file(path)
    return data.decode("utf-8")


def write_files(folder: str, files: dict[str, bytes]) -> None:
    """Writes files into a private folder of `store.volume`."""
    for name, data in files.items():
        with fsspec.open(join(folder, name), "wb") as file:
            file.write(data)
