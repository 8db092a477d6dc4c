"""The numbered log: the only way in which processes agree on anything.

An append is the exclusive create of the next number, so of all that saw entry n as the last one exactly one writes
n + 1; the others learn that the world has moved on. Entries are never changed or removed. This works on any store
that has exclusive create, with no lock and no clock.
"""

from ponente.store.volume import volume_of

_SUFFIX = ".json"


class NumberedLog:
    """An append-only log of small entries in one folder: 000001.json, 000002.json, …"""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._volume = volume_of(folder)

    def last_number(self) -> int:
        """The number of the last entry; 0 for an empty log."""
        last = 0
        for name in self._volume.names(self._folder):
            stem = name[: -len(_SUFFIX)]
            if name.endswith(_SUFFIX) and stem.isdigit() and int(stem) > last:
                last = int(stem)
        return last

    def read(self, number: int) -> bytes:
        """The bytes of one entry."""
        return self._volume.read(self._path(number))

    def append(self, after: int, entry: bytes) -> bool:
        """Writes entry `after` + 1; False if somebody has already written it."""
        return self._volume.create(self._path(after + 1), entry)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:06d}{_SUFFIX}"
