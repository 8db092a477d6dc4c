"""A raw configuration: nested dicts, lists and scalars, and for each value the place where the user wrote it.

In: what a YAML file or a flag says. Out: a tree that can be rewritten and overlaid while every value keeps its place,
so that an error about `data.components.main.source.train_urls` can say "data.train_urls (c.yaml:3)". Keys are always
strings; in a path, the items of a list are counted: ("data", "train_urls", "0").
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ponente.config.problems import ConfigError, Problem, shown

Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a value comes from."""

    where: str  # "c.yaml:3" or "flag --x"
    written: str  # its path as the user spelt it: "data.train_urls"
    text: str | None = None  # a scalar as it was typed; 1.10 is not "1.1"
    whole: bool = False  # a flag that gives a whole section: it takes the place of what was there

    def __str__(self) -> str:
        return f"{self.written} ({self.where})" if self.where else self.written


class Tree:
    """A raw configuration with places. Its methods change it; `copy()` first where others hold it too."""

    def __init__(self, raw: dict[str, Any] | None = None, places: dict[Path, Place] | None = None) -> None:
        self.raw: dict[str, Any] = {} if raw is None else raw
        self.places: dict[Path, Place] = {} if places is None else places

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """A tree of plain values that come from nowhere in particular."""
        return cls(_plain(raw))

    def copy(self) -> "Tree":
        """An independent tree; places are values and need no copy."""
        return Tree(copy.deepcopy(self.raw), dict(self.places))

    def get(self, path: Path) -> Any:
        """The value at `path`; None where there is none."""
        here: Any = self.raw
        for part in path:
            if not isinstance(here, dict) or part not in here:
                return None
            here = here[part]
        return here

    def has(self, path: Path) -> bool:
        """Whether something, be it null, was given at `path`."""
        parent = self.get(path[:-1])
        return isinstance(parent, dict) and path[-1] in parent

    def keys(self, path: Path) -> list[str]:
        """The keys of the section at `path`; none where there is no section."""
        section = self.get(path)
        return list(section) if isinstance(section, dict) else []

    def place(self, path: Path) -> Place:
        """Where the value at `path` comes from: its own place, else that of the section that holds it."""
        for length in range(len(path), 0, -1):
            found = self.places.get(path[:length])
            if found is not None:
                written = ".".join([found.written, *path[length:]])
                return found if length == len(path) else Place(where=found.where, written=written)
        return Place(where="", written=".".join(path))

    def first_place(self, path: Path) -> Place:
        """As `place`, for a section that only flags like `--section.key` speak of: the place of the first of them."""
        own = self.places.get(path)
        below = next(self._places_below(path), None)
        return self.place(path) if own is not None or below is None else self.places[below]

    def put(self, path: Path, value: Any, like: Path) -> None:
        """Sets a value that stems from what the user wrote at `like`."""
        place = self.place(like)
        self._section(path[:-1], place)[path[-1]] = value
        if place.where:
            self.places[path] = replace(place, whole=False)

    def drop(self, path: Path) -> None:
        """Removes what stands at `path`, if anything does."""
        if self.has(path):
            del self.get(path[:-1])[path[-1]]
        for key in list(self._places_below(path)):
            del self.places[key]

    def drop_matching(self, patterns: Collection[str]) -> None:
        """Removes the paths that `patterns` name; in "data.components.*.pack" the star is any one key."""
        for pattern in patterns:
            for path in list(self.matching(tuple(pattern.split(".")))):
                self.drop(path)

    def matching(self, pattern: Path) -> Iterator[Path]:
        """The paths of this tree that fit a pattern, where `*` is any one key."""
        found: list[Path] = [()]
        for part in pattern:
            found = [(*path, key) for path in found for key in self.keys(path) if part in ("*", key)]
        yield from found

    def move(self, old: Path, new: Path) -> None:
        """Moves a value, with its places, to the path that is another name of the same thing.

        Where both stand, sections are joined, and two different values of one thing are an error.
        """
        if not self.has(old):
            return
        value = self.get(old)
        if self.has(new):
            self._join(old, value, new)
            return
        moved = {(*new, *key[len(old) :]): self.places[key] for key in self._places_below(old)}
        place = self.place(old)
        self.drop(old)
        self._section(new[:-1], place)[new[-1]] = value
        self.places.update(moved)

    def wrap(self, path: Path, key: str) -> None:
        """Makes the value at `path` the `key` of a new section there."""
        value = self.get(path)
        place = self.place(path)
        self.put(path, {key: value}, like=path)
        if place.where:
            self.places[*path, key] = place

    def _join(self, old: Path, value: Any, new: Path) -> None:
        present = self.get(new)
        if isinstance(value, dict) and isinstance(present, dict):
            for key in list(value):
                self.move((*old, key), (*new, key))
        elif value != present or isinstance(value, bool) != isinstance(present, bool):
            raise ConfigError(
                Problem(
                    found=f"{self.place(old)} = {shown(value)} beside {self.place(new)} = {shown(present)}",
                    needed="one value, for both name the same setting",
                    remedy=f"remove one of them; {'.'.join(new)} is the name that Ponente uses",
                )
            )
        self.drop(old)

    def overlay(self, other: "Tree") -> None:
        """Lays another tree over this one: sections are merged, all else is replaced by what `other` says."""
        for key in other.raw:
            self.overlay_at((key,), other)

    def overlay_at(self, path: Path, other: "Tree") -> None:
        """Lays what `other` says at `path` over what stands here."""
        value = other.get(path)
        place = other.places.get(path)
        is_merge = isinstance(value, dict) and isinstance(self.get(path), dict) and not (place and place.whole)
        if is_merge:
            for key in value:
                self.overlay_at((*path, key), other)
            return
        self.drop(path)
        self._section(path[:-1], other.place(path))[path[-1]] = copy.deepcopy(value)
        self.places.update({key: other.places[key] for key in other._places_below(path)})

    def _section(self, path: Path, place: Place) -> dict[str, Any]:
        """The dict at `path`, made where it is missing."""
        here = self.raw
        for depth, part in enumerate(path, start=1):
            if here.get(part) is None:
                here[part] = {}
                if place.where:
                    self.places[path[:depth]] = Place(where=place.where, written=place.written)
            if not isinstance(here[part], dict):
                raise ConfigError(
                    Problem(
                        found=f"{self.place(path[:depth])} = {shown(here[part])} and, below it, {place}",
                        needed="a section of keys there, or a value, not both",
                        remedy="remove one of them",
                    )
                )
            here = here[part]
        return here

    def _places_below(self, path: Path) -> Iterator[Path]:
        length = len(path)
        return (key for key in self.places if key[:length] == path)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
