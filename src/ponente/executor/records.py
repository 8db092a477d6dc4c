"""What is on disk about a step: the layout of its folder and the entries of its log.

`{prefix}/{name}-{first 8 of identity}/` holds `output-N/` (the output of the attempt whose claim is entry N), `state/`,
and dot-named records: the payload, the numbered log, heartbeats, events, progress, and the log files of attempts.
Everything that a plan, `status`, `why` or the browser says is derived from these.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from ponente.cluster.context import Progress
from ponente.cluster.process import ProcessName
from ponente.store.formats import decode_record
from ponente.store.log import NumberedLog
from ponente.store.paths import below, join, relative
from ponente.store.volume import volume_of

FORMAT = 1


class Outcome(StrEnum):
    """Why an attempt ended without a commit."""

    FAILED = "failed"  # its own error: few retries
    PREEMPTED = "preempted"  # it lost its place: many retries
    NO_SPACE = "no space"  # the disk is full: no retry until there is room


class ErrorNote(msgspec.Struct, frozen=True):
    """An error as people read it, without secrets."""

    type: str
    message: str
    traceback: str = ""
    is_users: bool = False  # its message says all that a user needs (a `UserError`'s)


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """Somebody works on the step, and promises a heartbeat."""

    holder: ProcessName
    run: str
    time: float
    heartbeat_seconds: float
    forced: bool = False
    state: str = "state"  # the name of the state folder; a run from nothing (--force) has one of its own
    format: int = FORMAT


class Release(msgspec.Struct, frozen=True, tag="release"):
    """The work ended without a result. `final`: no retries are left; `code`: the step's source file, hashed."""

    outcome: Outcome
    run: str
    time: float
    final: bool
    error: ErrorNote
    code: str | None = None
    format: int = FORMAT


class Adoption(msgspec.Struct, frozen=True):
    """That a step's result is taken from another, and who says so."""

    identity: str
    folder: str
    reason: str
    who: str


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """The result: where it lies (from the prefix), with those names of it that lie in the state folder.

    `counts` says how many names each of these folders had, to see later that none is gone.
    """

    identity: str
    output: str
    run: str
    time: float
    seconds: float = 0.0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    objects: dict[str, str] = msgspec.field(default_factory=dict)
    summary: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)  # what people should know, such as shards set aside
    defaults: str = "{}"  # that the config rested on, as JSON; no part of identity
    adopted: Adoption | None = None
    removed: bool = False  # by `ponente gc`: what is left of the output, if anything, is no result
    format: int = FORMAT


Entry = Claim | Release | Commit
_decode_entry: Callable[[bytes], Entry] = msgspec.json.Decoder(Entry).decode


class PayloadRecord(msgspec.Struct, frozen=True):
    """A step's payload, whole."""

    identity: str
    payload: dict[str, Any]
    run: str
    time: float
    description: str | None = None
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class LogView:
    """A step's log as last seen: its last number and entry."""

    number: int
    entry: Entry | None


def count_names(folder: str) -> int:
    """How many files and folders a folder holds, records aside."""
    return sum(not name.startswith(".") for name in volume_of(folder).names(folder))


@dataclass(frozen=True)
class StepFolder:
    """The folder of one step under a prefix."""

    prefix: str
    name: str

    @property
    def path(self) -> str:
        return below(self.prefix, self.name)

    @property
    def log(self) -> NumberedLog:
        return NumberedLog(self.path)

    def state(self, view: LogView) -> str:
        """The state folder of the attempts that end the log."""
        claims = (entry for _, entry in self.entries_backwards(view) if isinstance(entry, Claim))
        claim = next(claims, None)
        return f"{self.path}/{claim.state if claim is not None else 'state'}"

    def output(self, claim: int) -> str:
        """The output folder of the attempt whose claim is entry `claim`."""
        return f"{self.path}/output-{claim}"

    def heartbeat(self, claim: int) -> str:
        return f"{self.path}/.heartbeats/{claim}"

    def step_log(self, run: str, attempt: int) -> str:
        """The file that takes what an attempt prints."""
        return f"{self.path}/.logs/{run}-{attempt}.log"

    def view(self) -> LogView:
        """The end of the log."""
        log = self.log
        number = log.last_number()
        return LogView(number, self.entry(number) if number else None)

    def entry(self, number: int) -> Entry:
        """One entry of the log."""
        log = self.log
        return decode_record(log.path(number), log.read(number), _decode_entry, FORMAT)

    def entries_backwards(self, view: LogView) -> Iterator[tuple[int, Entry]]:
        """The entries from the end of the log to its start."""
        if view.entry is not None:
            yield view.number, view.entry
            for number in range(view.number - 1, 0, -1):
                yield number, self.entry(number)

    def last_commit(self, view: LogView) -> Commit | None:
        """The commit in force, if any; a later claim or failure does not undo it."""
        for _, entry in self.entries_backwards(view):
            if isinstance(entry, Commit):
                return entry
        return None

    def append(self, after: int, entry: Entry) -> bool:
        """Writes the entry after number `after`; False if somebody was first."""
        return self.log.append(after, msgspec.json.encode(entry))

    def payload_record(self) -> PayloadRecord | None:
        """The stored payload, if any."""
        path = f"{self.path}/.payload.json"
        try:
            data = volume_of(path).read(path)
        except FileNotFoundError:
            return None
        return decode_record(path, data, lambda raw: msgspec.convert(json.loads(raw), PayloadRecord), FORMAT)

    def write_payload(self, record: PayloadRecord) -> None:
        """Stores the payload unless one is there."""
        path = f"{self.path}/.payload.json"
        volume_of(path).create(path, json.dumps(msgspec.structs.asdict(record)).encode())

    def place(self, commit: Commit, path: str = "") -> str:
        """Where `path` of a committed output lies."""
        first = path.partition("/")[0]
        if first and first in commit.objects:
            return join(self.absolute(commit.objects[first]), path[len(first) :] or ".")
        output = self.absolute(commit.output)
        return join(output, path) if path else output

    def missing(self, commit: Commit) -> str | None:
        """What is gone of a committed output, in words; None if all is there."""
        output = self.place(commit)
        if commit.removed or (commit.adopted is not None and self._is_removed(commit, commit.adopted)):
            return f"{output} was removed by ponente gc"
        if not commit.counts and not volume_of(output).exists(output):
            return f"{output} is gone"
        for place, count in commit.counts.items():
            folder = self.absolute(place)
            found = count_names(folder)
            if found < count:
                return f"{count - found} of the {count} files in {folder} are gone"
        return None

    def _is_removed(self, commit: Commit, adopted: Adoption) -> bool:
        """Whether the step whose result was taken over says that it is no result any more."""
        source = StepFolder(self.prefix, adopted.folder)
        entries = (entry for _, entry in source.entries_backwards(source.view()))
        return any(isinstance(one, Commit) and one.removed and one.output == commit.output for one in entries)

    def absolute(self, place: str) -> str:
        """A place that the log stores, whole; what it stores is clean already."""
        return place if place.startswith("/") or "://" in place else below(self.prefix, place)

    def from_prefix(self, path: str) -> str:
        """`path` as the log stores it: from the prefix where it is below it, so that a prefix may be moved."""
        below = relative(path, self.prefix)
        return path if below is None else below

    def record_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Adds an event; events are never changed."""
        now = time.time()
        name = f"{time.time_ns()}-{secrets.token_hex(4)}.json"
        path = f"{self.path}/.events/{name}"
        volume_of(path).create(path, msgspec.json.encode({"format": FORMAT, "kind": kind, "time": now, **data}))

    def events(self) -> list[dict[str, Any]]:
        """The events of all attempts, in order."""
        folder = f"{self.path}/.events"
        volume = volume_of(folder)
        names = sorted(name for name in volume.names(folder) if name.endswith(".json"))
        return [msgspec.json.decode(volume.read(f"{folder}/{name}")) for name in names]

    def write_progress(self, progress: Progress) -> None:
        """Publishes how far the running attempt is."""
        path = f"{self.path}/.progress.json"
        volume_of(path).replace(path, msgspec.json.encode(progress))

    def progress(self) -> Progress | None:
        """How far the running (or last) attempt is, if it said."""
        path = f"{self.path}/.progress.json"
        try:
            return msgspec.json.decode(volume_of(path).read(path), type=Progress)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
