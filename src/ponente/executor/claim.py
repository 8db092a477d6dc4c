"""Claims: who may work on a step, and who may commit it.

A tenure is a claim that this process holds: entry n of the step's log. It ends by writing entry n + 1, commit or
release; if somebody has taken over, that number is theirs and the write fails, so a holder that lost its claim cannot
commit however late it wakes up. Heartbeats are advisory: a watcher counts, by its own clock, how long one has not
changed. A holder that ended on the watcher's own host is taken over at once.
"""

import logging
import os
import threading
import time

from ponente.cluster.process import is_gone, this_process
from ponente.executor.records import Claim, Commit, LogView, Release, StepFolder
from ponente.store.paths import basename
from ponente.store.volume import volume_of

logger = logging.getLogger(__name__)

HEARTBEAT_VARIABLE = "PONENTE_HEARTBEAT_SECONDS"
_DEFAULT_HEARTBEAT_SECONDS = 5.0
_MISSED_BEATS = 12


class LostClaimError(RuntimeError):
    """The claim was taken over; nothing of this attempt may be published."""


def heartbeat_seconds() -> float:
    """How often a holder promises to be heard; a claim not heard of for twelve times that may be taken over."""
    return float(os.environ.get(HEARTBEAT_VARIABLE) or _DEFAULT_HEARTBEAT_SECONDS)


class Tenure:
    """A claim held by this process (not by its forks)."""

    def __init__(self, folder: StepFolder, number: int, claim: Claim) -> None:
        self.folder = folder
        self.number = number
        self.claim = claim
        self._beats = 0

    def beat(self) -> None:
        """Lets watchers hear that the holder is alive."""
        self._beats += 1
        path = self.folder.heartbeat(self.number)
        volume_of(path).replace(path, str(self._beats).encode())

    def is_held(self) -> bool:
        """Whether nobody has taken over so far."""
        return self.folder.log.last_number() == self.number

    def end(self, entry: Commit | Release) -> None:
        """Ends the tenure; LostClaimError if somebody has taken over."""
        if this_process().token != self.claim.holder.token:
            raise LostClaimError(f"{self.folder.path}: a fork of the holder cannot end its claim; let the holder do it")
        if not self.folder.append(self.number, entry):
            raise LostClaimError(
                f"{self.folder.path}: the claim of this process (entry {self.number}) was taken over after it was not "
                "heard of; its result is dropped, the new holder's counts"
            )


def take_claim(folder: StepFolder, after: int, run: str, *, forced: bool = False, fresh: bool = False) -> Tenure | None:
    """Claims the step as entry `after` + 1; None if somebody else wrote that entry.

    Args:
        folder: the step's.
        after: the number of the log's last entry, as the claimant saw it.
        run: whose claim it is.
        forced: gives the step all its retries again.
        fresh: starts from nothing, in a state folder of its own; else the last claim's is taken over.
    """
    state = f"state-{after + 1}"
    if not fresh:
        view = LogView(after, folder.entry(after) if after else None)
        state = basename(folder.state(view))
    claim = Claim(
        holder=this_process(),
        run=run,
        time=time.time(),
        heartbeat_seconds=heartbeat_seconds(),
        forced=forced,
        state=state,
    )
    return Tenure(folder, after + 1, claim) if folder.append(after, claim) else None


class Heart:
    """Beats for all tenures of this process, from one thread; an error of the store is logged and tried again."""

    def __init__(self) -> None:
        self._tenures: dict[int, Tenure] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._stirred = threading.Event()

    def add(self, tenure: Tenure) -> None:
        """Begins to beat for a tenure."""
        with self._lock:
            self._tenures[id(tenure)] = tenure
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="ponente-heart", daemon=True)
                self._thread.start()
        self._stirred.set()

    def remove(self, tenure: Tenure) -> None:
        """Stops beating for a tenure."""
        with self._lock:
            self._tenures.pop(id(tenure), None)

    def _run(self) -> None:
        while True:
            with self._lock:
                tenures = list(self._tenures.values())
            if not tenures:
                self._stirred.wait()
                self._stirred.clear()
                continue
            time.sleep(min(tenure.claim.heartbeat_seconds for tenure in tenures))
            with self._lock:
                tenures = list(self._tenures.values())
            for tenure in tenures:
                try:
                    tenure.beat()
                except OSError as error:
                    logger.warning("heartbeat of %s: %s; trying again", tenure.folder.path, error)


HEART = Heart()


class Watcher:
    """Judges claims of others by this process's own clock."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[bytes, float]] = {}

    def is_dead(self, folder: StepFolder, view: LogView) -> bool:
        """Whether the claim that ends the log may be taken over."""
        claim = view.entry
        if not isinstance(claim, Claim):
            raise TypeError(f"{folder.path}: entry {view.number} is no claim")
        if is_gone(claim.holder):
            return True
        beat = self._heartbeat(folder.heartbeat(view.number))
        now = time.monotonic()
        last, since = self._seen.get((folder.path, view.number), (None, now))
        if beat != last:
            self._seen[folder.path, view.number] = (beat, now)
            return False
        return now - since > claim.heartbeat_seconds * _MISSED_BEATS

    def _heartbeat(self, path: str) -> bytes:
        try:
            return volume_of(path).read(path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            logger.warning("cannot hear %s: %s; trying again", path, error)
            return b"?"
