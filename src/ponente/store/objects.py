"""Volumes of whole objects: what a bucket can do, and no more.

Objects appear whole. Folders are names only, and a folder is published by an exclusively created pointer to where its
files lie. `store.volume.Volume` says what each operation promises; a kind of store adds how it creates exclusively.
"""

from abc import ABC, abstractmethod
from typing import Any

from ponente.store.paths import PRIVATE_MARK, absolute, basename, join, parent, private_path, relative

_POINTER = ".at"


class ObjectVolume(ABC):
    """A volume over a filesystem of fsspec."""

    protocol: str

    @property
    @abstractmethod
    def _fs(self) -> Any:
        """The filesystem, of this process."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool: ...

    def read(self, path: str) -> bytes:
        data: bytes = self._fs.cat_file(path)
        return data

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def is_folder(self, path: str) -> bool:
        try:
            return bool(self._fs.info(path)["type"] == "directory")
        except FileNotFoundError:
            return False

    def size(self, path: str) -> int:
        return int(self._fs.size(path))

    def names(self, folder: str) -> list[str]:
        try:
            found = self._fs.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        whole = folder.partition("://")[2].strip("/")
        return [basename(name) for name in found if name.strip("/") != whole]

    def make_folder(self, folder: str) -> None:
        return None

    def replace(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(path, data)

    def private_place(self, path: str) -> str:
        return private_path(path)

    def publish_file(self, private: str, path: str) -> bool:
        created = self.create(path, self.read(private))
        self._drop_private(private)
        return created

    def publish_folder(self, private: str, path: str) -> bool:
        pointer = relative(private, parent(path))
        if pointer is None:
            raise ValueError(f"found {private}, which is not beside {path}; use the volume's private_place")
        created = self.create(join(path, _POINTER), pointer.encode())
        if not created:
            self._drop_private(private)
        return created

    def published_folder(self, path: str) -> str | None:
        try:
            return join(parent(path), self.read(join(path, _POINTER)).decode())
        except FileNotFoundError:
            return None

    def leftovers(self, folder: str) -> list[str]:
        names = self.names(folder)
        private = [name for name in names if name.startswith(PRIVATE_MARK)]
        if not private:
            return []
        pointed = (self.published_folder(join(folder, name)) for name in names if name not in private)
        kept = {relative(place, folder) for place in pointed if place is not None}
        kept = {place.partition("/")[0] for place in kept if place}
        return [join(folder, name) for name in private if name not in kept]

    def sync(self, path: str) -> None:
        return None

    def remove(self, path: str) -> None:
        """Pointers go first: what they point to is then seen by nobody."""
        for name in self._find(path):
            if basename(name) == _POINTER:
                folder = parent(absolute(f"{self.protocol}://{name}"))
                lying = self.published_folder(folder)
                self._remove_one(join(folder, _POINTER))
                if lying is not None:
                    self._drop_private(lying)
        self._remove_all(path)

    def _find(self, path: str) -> list[str]:
        """The names of all objects at and below a name, with their bucket."""
        found: list[str] = self._fs.find(path)
        return found

    @abstractmethod
    def _remove_one(self, path: str) -> None:
        """Removes an object; nothing happens where there is none."""

    @abstractmethod
    def _remove_all(self, path: str) -> None:
        """Removes all objects at and below a name."""

    def _drop_private(self, private: str) -> None:
        folder = parent(private)
        self.remove(folder if basename(folder).startswith(PRIVATE_MARK) else private)
