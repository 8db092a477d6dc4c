"""The volume of memory://, for tests and for trying things out.

It does what a bucket can do, and no more: whole objects, exclusive create, and folders that are published by an
exclusively created pointer to where their files lie. `store.volume.Volume` says what each operation promises.
"""

import contextlib
import threading

import fsspec

from ponente.store.paths import PRIVATE_MARK, absolute, basename, join, parent, relative

_POINTER = ".at"


class MemoryVolume:
    """fsspec's memory://: this process only. Folders are published by pointer, as on a bucket."""

    _lock = threading.RLock()

    def __init__(self) -> None:
        self._fs = fsspec.filesystem("memory")

    def read(self, path: str) -> bytes:
        data: bytes = self._fs.cat_file(path)
        return data

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def is_folder(self, path: str) -> bool:
        return bool(self._fs.isdir(path))

    def size(self, path: str) -> int:
        return int(self._fs.size(path))

    def names(self, folder: str) -> list[str]:
        with self._lock:
            if not self._fs.isdir(folder):
                return []
            return [basename(name) for name in self._fs.ls(folder, detail=False)]

    def make_folder(self, folder: str) -> None:
        with self._lock:
            self._fs.makedirs(folder, exist_ok=True)

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data)
            return True

    def replace(self, path: str, data: bytes) -> None:
        with self._lock:
            self._fs.pipe_file(path, data)

    def publish_file(self, private: str, path: str) -> bool:
        with self._lock:
            created = self.create(path, self.read(private))
            self._drop_private(private)
            return created

    def publish_folder(self, private: str, path: str) -> bool:
        pointer = relative(private, parent(path))
        if pointer is None:
            raise ValueError(f"found {private}, which is not beside {path}; use store.volume.private_path")
        with self._lock:
            self.make_folder(private)
            created = self.create(join(path, _POINTER), pointer.encode())
            if not created:
                self._drop_private(private)
            return created

    def published_folder(self, path: str) -> str | None:
        pointer = join(path, _POINTER)
        if not self.exists(pointer):
            return None
        return join(parent(path), self.read(pointer).decode())

    def sync(self, path: str) -> None:
        return None

    def remove(self, path: str) -> None:
        with self._lock:
            for name in self._fs.find(path):
                if basename(name) == _POINTER:
                    self._remove_published(parent(absolute(f"memory://{name}")))
            for name in self._fs.find(path):
                self._fs.rm_file(name)
            for folder in reversed(self._fs.find(path, withdirs=True)):
                with contextlib.suppress(FileNotFoundError):  # implied by what was below it, and gone with that
                    self._fs.rmdir(folder)

    def is_shared(self) -> bool:
        return False

    def _remove_published(self, path: str) -> None:
        if (lying := self.published_folder(path)) is not None:
            self._drop_private(lying)

    def _drop_private(self, private: str) -> None:
        folder = parent(private)
        self.remove(folder if basename(folder).startswith(PRIVATE_MARK) else private)
