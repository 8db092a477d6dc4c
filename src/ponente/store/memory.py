"""The volume of memory://, for tests and for trying things out: this process alone sees it."""

import contextlib
import threading
from typing import Any

import fsspec

from ponente.store.objects import ObjectVolume


class MemoryVolume(ObjectVolume):
    """fsspec's memory://, which makes folders of its own, used as a bucket is."""

    protocol = "memory"
    _lock = threading.RLock()

    @property
    def _fs(self) -> Any:
        return fsspec.filesystem("memory")

    def names(self, folder: str) -> list[str]:
        with self._lock:
            return super().names(folder)

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
            super().replace(path, data)

    def publish_file(self, private: str, path: str) -> bool:
        with self._lock:
            return super().publish_file(private, path)

    def publish_folder(self, private: str, path: str) -> bool:
        with self._lock:
            return super().publish_folder(private, path)

    def remove(self, path: str) -> None:
        with self._lock:
            super().remove(path)

    def is_shared(self) -> bool:
        return False

    def _remove_one(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _remove_all(self, path: str) -> None:
        for name in self._fs.find(path):
            self._fs.rm_file(name)
        for folder in reversed(self._fs.find(path, withdirs=True)):
            with contextlib.suppress(FileNotFoundError):  # implied by what was below it, and gone with that
                self._fs.rmdir(folder)
