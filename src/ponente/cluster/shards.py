"""map_shards: one function over many shards, resumable by shard.

In: a function and shards (any JSON values, often paths). Out: each shard's file or folder, published whole under the
state path, and its small result. A finished shard is never redone; a shard that fails is tried again a bounded number
of times, then set aside and named, within a budget; the heaviest shards go first and each worker takes the next one
when it is free, so skew costs at most one shard's time.
"""

import errno
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ponente.cluster.address import cluster_address
from ponente.cluster.context import StepContext, current_step, report_progress
from ponente.cluster.workers import Counted, Elsewhere, Ended, WorkerPool, call_safely
from ponente.config.errors import RefusedError
from ponente.store.formats import decode_record
from ponente.store.paths import absolute, join, parent, relative
from ponente.store.redaction import Redactor, may_be_masked
from ponente.store.volume import volume_of

logger = logging.getLogger(__name__)

FORMAT = 1
MAPS = ".maps"  # where a state folder keeps the records of finished shards
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class FinishedShard:
    """A shard that is done: where its file or folder lies (None if it made none) and the function's small result."""

    index: int
    shard: Any
    path: str | None
    value: Any


@dataclass(frozen=True)
class QuarantinedShard:
    """A shard that was set aside, and its last error."""

    index: int
    shard: Any
    error: str


@dataclass(frozen=True)
class ShardMap:
    """What became of all shards, in their order."""

    finished: list[FinishedShard]
    quarantined: list[QuarantinedShard] = field(default_factory=list)

    @property
    def values(self) -> list[Any]:
        return [shard.value for shard in self.finished]

    @property
    def paths(self) -> list[str]:
        return [shard.path for shard in self.finished if shard.path is not None]


class PoisonShardError(RuntimeError):
    """More shards kept failing than the budget allows; names them."""


def map_shards(
    fn: Callable[..., Any],
    shards: Sequence[Any],
    *,
    name: str = "shards",
    suffix: str = "",
    state_path: str | None = None,
    workers: int | None = None,
    max_attempts: int = 3,
    max_quarantined: int = 0,
    timeout_seconds: float | None = None,
    weight: Callable[[Any], float] | None = None,
    on_counts: Callable[[Mapping[str, int]], None] | None = None,
) -> ShardMap:
    """Runs `fn` over all shards in worker processes; a second call goes on where the first was cut off.

    Args:
        fn: `fn(shard)` or `fn(shard, output_path)`, importable, deterministic. It may write one file or folder at
            `output_path`, which is published whole when it returns, and may return a small JSON value.
        shards: JSON values; strings that name files weigh what the files weigh.
        name: the folder below the state path. Inside a step, children read it as `step / name`.
        suffix: of the published names: `00000{suffix}`, `00001{suffix}`, …
        state_path: where finished shards are kept; inside a step the step's own.
        workers: processes; by default the step's `num_cpus`, else all cores; 0 runs in this process. On a Ray cluster
            by default as many as it has cores, on all of its machines.
        max_attempts: tries of one shard before it counts as poison.
        max_quarantined: how many poison shards may be set aside; one more is a PoisonShardError.
        timeout_seconds: of one try; the worker is stopped.
        weight: of a shard, if sizes of files do not say it.
        on_counts: is told, a few times a second, the sums of what the shards in work and those finished in this call
            have counted (`cluster.workers.report_counts`).

    Raises:
        RefusedError: a shard raised a UserError, which is not tried again, and the budget does not allow it.
        PoisonShardError: a shard kept failing otherwise.

    Example:
        counts = map_shards(count_words, expand("text/*.txt"), name="counts", suffix=".json")
    """
    context = current_step()
    if state_path is None:
        if context is None:
            raise ValueError("map_shards found no running step to keep finished shards in; give state_path=…")
        state_path = context.state_path
        if name in context.maps:
            raise ValueError(
                f"map_shards: found a second map called {name!r} in step {context.name!r}, which would take the first "
                "one's shards for its own; give each a name=…"
            )
        context.maps.add(name)
    listed = list(shards)
    redactor = context.redactor if context else Redactor()
    call = _ShardCall(fn, listed, absolute(state_path), name, suffix, redactor)
    call.check()
    ledger = _Ledger(call, context, max_attempts, max_quarantined, weight, on_counts or _ignore_counts)
    ledger.read_finished()
    if not volume_of(call.folder).is_shared():
        workers = 0
    ledger.run(workers, context.num_cpus if context else None, timeout_seconds)
    if context is not None and any(shard.path for shard in ledger.finished.values()):
        context.state_objects.add(name)
    result = ledger.result()
    if context is not None and result.quarantined:
        context.notes.append(f"{len(result.quarantined)} of {len(listed)} {name} set aside")
    return result


def _places(workers: int | None, cores: int | None, shards: int, place: str) -> tuple[int, Elsewhere | None]:
    """How many workers there shall be on this machine, and where the others come from.

    On a cluster those here work from the start, so that steps that wait for each other's cores all get on.
    """
    address = cluster_address()
    if address is None:
        return min(workers or cores or os.cpu_count() or 1, shards), None
    here = min(workers or shards, cores or 1, shards)
    rest = min(workers or shards, shards) - here
    if rest == 0:
        return here, None
    from ponente.cluster.ray.shard_workers import RayWorkers

    volume_of(place).make_folder(place)
    return here, RayWorkers(address, rest, place, is_asked=workers is not None)


def _ignore_counts(counts: Mapping[str, int]) -> None:
    return None


class _ShardRecord(msgspec.Struct, frozen=True):
    """A finished shard on disk: the shard without secrets, the path from the state path."""

    shard: Any
    path: str | None
    value: Any
    seconds: float
    format: int = FORMAT


def _decode_shard(data: str | bytes) -> _ShardRecord:
    """A shard's record; by Python's own JSON, which keeps what is no number and what is beyond 64 bits."""
    return msgspec.convert(json.loads(data), _ShardRecord)


class _ShardCall:
    """Runs one shard wherever it is asked to, publishes its output, and then its record."""

    def __init__(
        self, fn: Callable[..., Any], shards: list[Any], state_path: str, name: str, suffix: str, redactor: Redactor
    ) -> None:
        self._fn = fn
        self._redactor = redactor
        self.shards = shards
        self.name = name
        self.state_path = state_path
        self.folder = join(state_path, name)
        self.records = f"{state_path}/{MAPS}/{name}"
        self._suffix = suffix
        parameters = inspect.signature(fn).parameters.values()
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        self._takes_path = len([one for one in positional if one.default is one.empty]) >= 2

    def check(self) -> None:
        """Refuses, before any work, shards that have no JSON text and a name that is no name."""
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"map_shards: found name={self.name!r}; needed one name without slashes or a leading dot")
        for index, shard in enumerate(self.shards):
            try:
                json.dumps(shard)
            except TypeError as error:
                raise TypeError(f"map_shards: shard {index} ({shard!r}) is no JSON value ({error})") from error

    def storable(self, index: int) -> Any:
        """A shard as a record may hold it: plain JSON, without secrets."""
        return self._redactor.value(json.loads(json.dumps(self.shards[index])))

    def record_path(self, index: int) -> str:
        return f"{self.records}/{index:05d}.json"

    def __call__(self, index: int) -> _ShardRecord:
        began = time.monotonic()
        shard = self.shards[index]
        if self._takes_path:
            published, value = self._publish(shard, f"{self.folder}/{index:05d}{self._suffix}")
        else:
            published, value = None, self._fn(shard)
        fields = {
            "shard": self.storable(index),
            "path": relative(published, self.state_path) if published else None,
            "value": value,
            "seconds": round(time.monotonic() - began, 3),
            "format": FORMAT,
        }
        try:
            encoded = json.dumps(fields)
        except TypeError as error:
            raise TypeError(f"found a result {value!r} of shard {shard!r}; needed a small JSON value") from error
        path = self.record_path(index)
        volume_of(path).create(path, encoded.encode())
        return _decode_shard(encoded)

    def _publish(self, shard: Any, path: str) -> tuple[str | None, Any]:
        volume = volume_of(path)
        private = volume.private_place(path)
        here = volume_of(private)
        here.make_folder(parent(private))
        try:
            value = self._fn(shard, private)
            if not here.exists(private):
                here.remove(parent(private))
                return None, value
            if here.is_folder(private):
                volume.publish_folder(private, path)
                return volume.published_folder(path), value
            volume.publish_file(private, path)
            return path, value
        except BaseException:
            here.remove(parent(private))
            raise


class _Ledger:
    """Which shards are finished, waiting, failed and set aside; hands them out heaviest first."""

    def __init__(
        self,
        call: _ShardCall,
        context: StepContext | None,
        max_attempts: int,
        max_quarantined: int,
        weight: Callable[[Any], float] | None,
        on_counts: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._call = call
        self._context = context
        self._max_attempts = max_attempts
        self._max_quarantined = max_quarantined
        self._weight = weight
        self._failures: dict[int, int] = {}
        self._waiting: list[int] = []
        self._quarantined: dict[int, QuarantinedShard] = {}
        self._last_report = 0.0
        self._on_counts = on_counts
        self._counts: dict[int, Mapping[str, int]] = {}
        self.finished: dict[int, FinishedShard] = {}

    def read_finished(self) -> None:
        """Takes over what earlier attempts finished, and lines up the rest."""
        volume = volume_of(self._call.records)
        names = [name for name in volume.names(self._call.records) if name[:-5].isdigit() and name.endswith(".json")]
        for name in names:
            path = f"{self._call.records}/{name}"
            try:
                read = volume.read(path)
            except FileNotFoundError:  # another who makes the same is done, and has cleared up
                continue
            record = decode_record(path, read, _decode_shard, FORMAT)
            if record.path is None or volume.exists(
                join(self._call.state_path, record.path)
            ):  # else somebody removed it
                self._accept(int(name[:-5]), record)
        if self.finished:
            done, total = len(self.finished), len(self._call.shards)
            logger.info("%s: %d of %d shards were finished before", self._call.name, done, total)
        open_shards = [index for index in range(len(self._call.shards)) if index not in self.finished]
        self._waiting = sorted(open_shards, key=self._weight_of)  # the heaviest last, where pop takes it

    def _accept(self, index: int, record: _ShardRecord) -> None:
        shards = self._call.shards
        if index >= len(shards) or not may_be_masked(record.shard, json.loads(json.dumps(shards[index]))):
            now = repr(self._call.storable(index)) if index < len(shards) else "no longer there"
            raise ValueError(
                f"{self._call.record_path(index)} was made from shard {record.shard!r}, but shard {index} is now "
                f"{now}; the list of shards changed under one identity. Put what it depends on into the config"
            )
        path = None if record.path is None else join(self._call.state_path, record.path)
        self.finished[index] = FinishedShard(index, shards[index], path, record.value)

    def _weight_of(self, index: int) -> tuple[float, int]:
        shard = self._call.shards[index]
        if self._weight is not None:
            return (self._weight(shard), -index)
        if isinstance(shard, str) and "://" not in shard and os.path.isfile(shard):
            return (float(os.path.getsize(shard)), -index)
        return (0.0, -index)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def next_key(self) -> int | None:
        return self._waiting.pop() if self._waiting else None

    def run(self, workers: int | None, cores: int | None, timeout_seconds: float | None) -> None:
        """Works through what is waiting; raises when the budget of poison shards is spent.

        Args:
            workers: asked for, here and elsewhere.
            cores: that the step has on this machine.
        """
        self._report(force=True)
        if workers != 0:
            here, elsewhere = _places(workers, cores, len(self._waiting), self._call.state_path)
            for ended in WorkerPool(self._call, here, timeout_seconds, elsewhere).run(self):
                self._take(ended)
        else:
            while (index := self.next_key()) is not None:
                self._take(call_safely(self._call, index, self._take))
        self._report(force=True)

    def _take(self, news: Ended | Counted | None) -> None:
        if isinstance(news, Counted):
            self._counts[news.key] = news.counts
        elif news is not None and news.error is None:
            self._accept(news.key, news.value)
        elif news is not None:
            self._counts.pop(news.key, None)
            self._fail(news)
        self._report()

    def _fail(self, ended: Ended) -> None:
        index, error = ended.key, ended.error or ""
        if ended.no_space:
            last = error.strip().rpartition("\n")[2]
            raise OSError(errno.ENOSPC, f"{self._call.name}: no space was left on the disk in shard {index} ({last})")
        if ended.is_lost:
            logger.warning("%s: shard %d is begun again: %s", self._call.name, index, error)
            self._waiting.append(index)
            return
        tries = self._max_attempts if ended.is_users else self._failures.get(index, 0) + 1
        self._failures[index] = tries
        shard = self._call.shards[index]
        last = error.strip().rpartition("\n")[2]
        if not ended.is_users:
            tried = f"try {tries} of {self._max_attempts}"
            logger.warning("%s: shard %d (%r) failed, %s: %s", self._call.name, index, shard, tried, last)
        self._event("shard_failed", index, tries, error)
        if tries < self._max_attempts:
            self._waiting.insert(0, index)
            return
        self._quarantined[index] = QuarantinedShard(index, shard, error)
        self._event("shard_quarantined", index, tries, error)
        if len(self._quarantined) > self._max_quarantined:
            if ended.is_users:
                raise RefusedError(error)
            named = ", ".join(f"shard {one.index} ({one.shard!r})" for one in self._quarantined.values())
            raise PoisonShardError(
                f"{self._call.name}: {named} failed {self._max_attempts} times each, and {self._max_quarantined} may "
                f"be set aside (max_quarantined); the last error was {last}\n{error}"
            )
        if ended.is_users:
            logger.warning("%s: shard %d is set aside: %s", self._call.name, index, error)

    def _event(self, kind: str, index: int, tries: int, error: str) -> None:
        if self._context is not None:
            data = {"map": self._call.name, "index": index, "shard": self._call.storable(index)}
            self._context.record_event(kind, {**data, "tries": tries, "error": error})

    def _report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._last_report > _PROGRESS_SECONDS:
            self._last_report = now
            note = f"{len(self._quarantined)} set aside" if self._quarantined else ""
            report_progress(len(self.finished), len(self._call.shards), unit=self._call.name, note=note)
            totals: dict[str, int] = {}
            for counts in self._counts.values():
                for name, count in counts.items():
                    totals[name] = totals.get(name, 0) + count
            self._on_counts(totals)

    def result(self) -> ShardMap:
        finished = [self.finished[index] for index in sorted(self.finished)]
        return ShardMap(finished, [self._quarantined[index] for index in sorted(self._quarantined)])
