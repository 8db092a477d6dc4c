"""The numbered log: the only way in which processes agree on anything.

An append is the exclusive create of the next number, so of all that saw entry n as the last one exactly one writes
n + 1; the others learn that the world has moved on. Entries are never changed or removed. This works on any store
that has exclusive create, with no lock and no clock.
"""

from ponente.store.volume import volume_of

_SUFFIX = ".json"


class NumberedLog:
    """An append-only log of small entries, files of one folder: .log.000001.json, .log.000002.json, …

    It shares the folder with other files: making a folder costs more than all that an append does.
    """

    def __init__(self, folder: str, name: str = ".log.") -> None:
        self._folder = folder
        self._name = name
        self._volume = volume_of(folder)

    def last_number(self) -> int:
        """The number of the last entry; 0 for an empty log."""
        last = 0
        start = len(self._name)
        for name in self._volume.names(self._folder):
            if name.startswith(self._name) and name.endswith(_SUFFIX) and name[start : -len(_SUFFIX)].isdigit():
                last = max(last, int(name[start : -len(_SUFFIX)]))
        return last

    def read(self, number: int) -> bytes:
        """The bytes of one entry."""
        return self._volume.read(self.path(number))

    def append(self, after: int, entry: bytes) -> bool:
        """Writes entry `after` + 1; False if somebody has already written it."""
        return self._volume.create(self.path(after + 1), entry)

    def path(self, number: int) -> str:
        """The file of one entry."""
        return f"{self._folder}/{self._name}{number:06d}{_SUFFIX}"
