"""Where bytes live, and the few things that may be done to them.

A volume reads, lists, removes, and makes things visible in three ways: `create` (exclusively: the one primitive of
coordination), `replace` (whole or not at all) and publishing a file or folder that was written in private. Nothing here
can leave a torn file under a name that a reader looks at. Local disk is here; a bucket (`store.bucket`) needs only
`create`, because a folder may be published by an exclusively created pointer (`store.objects`).
"""

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ponente.config.errors import RefusedError
from ponente.store.paths import PRIVATE_MARK, basename, join, parent, private_path, protocol_of

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

logger = logging.getLogger(__name__)


def is_no_space(error: BaseException) -> bool:
    """Whether `error`, or what caused it, says that the disk or quota is full."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in _NO_SPACE:
            return True
        link = link.__cause__ or link.__context__
    return False


class Volume(Protocol):
    """The operations that rooms may use on a place; paths are absolute (`store.paths.absolute`)."""

    def read(self, path: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none."""

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, unsorted; none where it does not exist."""

    def make_folder(self, folder: str) -> None: ...

    def create(self, path: str, data: bytes) -> bool:
        """Makes a file with these bytes unless one is there: True for exactly one of all that try."""

    def replace(self, path: str, data: bytes) -> None:
        """Makes a file with these bytes; a reader sees the old or the new ones, whole."""

    def private_place(self, path: str) -> str:
        """A fresh place to write what is published at `path` later; use the volume that it is on."""

    def publish_file(self, private: str, path: str) -> bool:
        """Makes a privately written file visible unless one is there; False, and the private one goes, if so."""

    def publish_folder(self, private: str, path: str) -> bool:
        """Makes a privately written folder visible, whole, unless one is there."""

    def published_folder(self, path: str) -> str | None:
        """Where the files of a published folder lie, or None while it is not published."""

    def leftovers(self, folder: str) -> list[str]:
        """What was written in private in a folder and never published."""

    def sync(self, path: str) -> None:
        """Returns when what was written below `path` would survive a loss of power."""

    def remove(self, path: str) -> None:
        """Removes a file or a folder with all below it; nothing happens where there is none."""

    def is_shared(self) -> bool:
        """Whether other processes see this volume."""


class LocalVolume:
    """Local disk (or anything mounted that has hard links and atomic rename)."""

    def read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = os.read(descriptor, 1 << 16)
            if len(data) < 1 << 16:
                return data
            chunks = [data]
            while data := os.read(descriptor, 1 << 20):
                chunks.append(data)
            return b"".join(chunks)
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.path.getsize(path)

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def create(self, path: str, data: bytes) -> bool:
        private = self._write_private(path, data)
        try:
            return _link(private, path)
        finally:
            os.unlink(private)

    def replace(self, path: str, data: bytes) -> None:
        private = self._write_private(path, data)
        try:
            os.replace(private, path)
        except BaseException:
            os.unlink(private)
            raise

    def private_place(self, path: str) -> str:
        return private_path(path)

    def publish_file(self, private: str, path: str) -> bool:
        _sync_one(private)
        try:
            return _link(private, path)
        finally:
            os.unlink(private)
            self._drop_private_folder(private)

    def publish_folder(self, private: str, path: str) -> bool:
        self.sync(private)
        try:
            os.rename(private, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            shutil.rmtree(private)
            return False
        finally:
            self._drop_private_folder(private)
        return True

    def published_folder(self, path: str) -> str | None:
        return path if os.path.isdir(path) else None

    def leftovers(self, folder: str) -> list[str]:
        return [join(folder, name) for name in self.names(folder) if name.startswith(PRIVATE_MARK)]

    def sync(self, path: str) -> None:
        if os.path.isfile(path):
            _sync_one(path)
        for folder, _, files in os.walk(path):
            for name in files:
                if not os.path.islink(whole := os.path.join(folder, name)):
                    _sync_one(whole)
            _sync_one(folder)

    def remove(self, path: str) -> None:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                if not basename(path).startswith(PRIVATE_MARK):  # out of sight first, in one stroke
                    hidden = f"{os.path.dirname(path)}/{PRIVATE_MARK}{secrets.token_hex(6)}"
                    os.rename(path, hidden)
                    path = hidden
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            return

    def is_shared(self) -> bool:
        return True

    def _write_private(self, path: str, data: bytes) -> str:
        folder = os.path.dirname(path)
        private = f"{folder}/{PRIVATE_MARK}{secrets.token_hex(6)}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            descriptor = os.open(private, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(private, flags, 0o666)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            os.unlink(private)
            raise
        return private

    def _drop_private_folder(self, private: str) -> None:
        folder = os.path.dirname(private)
        if basename(folder).startswith(PRIVATE_MARK):
            with contextlib.suppress(OSError):  # not empty: a writer left something beside; it stays private
                os.rmdir(folder)


def _link(private: str, path: str) -> bool:
    try:
        os.link(private, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        raise OSError(
            error.errno,
            f"{parent(path)} is on a filesystem without hard links, which exclusive create needs; "
            "choose a --prefix on another disk",
        ) from error
    return True


def _sync_one(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _memory_volume() -> Volume:
    from ponente.store.memory import MemoryVolume

    return MemoryVolume()


def _bucket_volume(protocol: str) -> Volume:
    from ponente.store.bucket import BucketVolume

    return BucketVolume(protocol)


_FACTORIES: dict[str, Callable[[], Volume]] = {
    "file": LocalVolume,
    "memory": _memory_volume,
    "s3": lambda: _bucket_volume("s3"),
    "gs": lambda: _bucket_volume("gs"),
}
_VOLUMES: dict[str, Volume] = {}


def register_volume(protocol: str, factory: Callable[[], Volume]) -> None:
    """Teaches the store another protocol."""
    _FACTORIES[protocol] = factory
    _VOLUMES.pop(protocol, None)


def forget_volumes() -> None:
    """Has volumes made anew, with the credentials and endpoints that the environment has now."""
    _VOLUMES.clear()


def volume_of(path: str) -> Volume:
    """The volume that holds `path`."""
    protocol = protocol_of(path)
    if protocol not in _VOLUMES:
        if protocol not in _FACTORIES:
            known = ", ".join(sorted(_FACTORIES))
            raise RefusedError(
                f"found {path}, whose protocol {protocol}:// cannot hold a graph; needed one of: {known}"
            )
        _VOLUMES[protocol] = _FACTORIES[protocol]()
    return _VOLUMES[protocol]


@contextmanager
def publishing(path: str) -> Iterator[str]:
    """Gives a private place to write one file to, and publishes it at `path` when the block ends well.

    Nothing is seen at `path` before, nor ever if the block raises. A file that is already at `path` stays.

    Example:
        with publishing("/data/00000.parquet") as private:
            pq.write_table(table, private)
    """
    volume = volume_of(path)
    private = volume.private_place(path)
    here = volume_of(private)
    here.make_folder(parent(private))
    try:
        yield private
        if not volume.publish_file(private, path):
            logger.warning("%s was there already and stays; the new one is dropped", path)
    except BaseException:
        here.remove(parent(private))
        raise


@contextmanager
def publishing_folder(path: str, *, is_large: bool = False) -> Iterator[str]:
    """Like `publishing`, for a folder; read it back through `volume_of(path).published_folder(path)`.

    Args:
        is_large: it is written where it will lie, in a bucket too, and not on the local disk first.
    """
    volume = volume_of(path)
    private = private_path(path) if is_large else volume.private_place(path)
    here = volume_of(private)
    here.make_folder(private)
    try:
        yield private
        if not volume.publish_folder(private, path):
            logger.warning("%s was there already and stays; the new one is dropped", path)
    except BaseException:
        if volume.published_folder(path) != private:  # or it is there, and only its answer was lost
            here.remove(parent(private))
        raise
