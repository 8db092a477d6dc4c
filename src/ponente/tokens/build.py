"""Builds token caches: plan, units in worker processes, ledger, marker.

In: what a cache is to be of. Out: the finished cache's ledger. A finished cache is checked against the config and used;
one that was begun is finished, without tokenizing again what is published; one of something else is refused, never
rebuilt or dropped. Bytes do not depend on the number of workers, nor on how often the build was cut off.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import msgspec

from ponente.cluster.context import current_step
from ponente.cluster.nursery import Nursery
from ponente.cluster.shards import MAPS, map_shards
from ponente.cluster.workers import nursery_of
from ponente.config.errors import RefusedError
from ponente.config.snapshot import plain_value
from ponente.store.lock import alone_in
from ponente.store.paths import absolute, join, protocol_of
from ponente.store.redaction import MASK, Redactor
from ponente.store.sources.source import Unit
from ponente.store.tensors import tensor_store
from ponente.store.token_cache.ledger import (
    PLAN,
    QUARANTINE,
    SEGMENTS,
    CacheError,
    CacheLedger,
    CachePlan,
    SegmentRecord,
    TokenizerRecord,
    read_ledger,
    read_plan,
    write_ledger,
    write_plan,
)
from ponente.store.token_cache.segment import (
    check_segments,
    notes_of_unit,
    published_segments,
    read_quarantine,
)
from ponente.store.volume import volume_of
from ponente.tokens.agreement import check_agreement, source_changes
from ponente.tokens.formats.format import INPUT_IDS, LOSS_MASK, LOSS_WEIGHTS
from ponente.tokens.load import load_tokenizer, on_trial
from ponente.tokens.loaded import loading
from ponente.tokens.meter import Meter
from ponente.tokens.progress import BuildProgress
from ponente.tokens.spec import CacheSpec
from ponente.tokens.tokenizer import Tokenizer
from ponente.tokens.unit import UnitBuild

_UNITS = "units"
_SAMPLED_UNITS = 4
_SAMPLE_CHARACTERS = 1 << 15
_SMALL_BYTES = 1 << 20  # a second's work; to start a process and load what it needs takes two

logger = logging.getLogger(__name__)


def build_cache(
    spec: CacheSpec,
    *,
    workers: int | None = None,
    on_progress: Callable[[BuildProgress], None] | None = None,
    in_order: bool = False,
    on_begun: Callable[[], None] | None = None,
) -> CacheLedger:
    """Builds a cache, or finishes it, or checks that the finished one is what the config asks for.

    Args:
        spec: what the cache is of.
        workers: processes; as `map_shards` counts them, but none besides this one for a few files that are small.
        on_progress: is told a few times a second how far it is.
        in_order: units one after the other, for a reader that has begun already; else the heaviest first.
        on_begun: is called when the cache at `spec.path` is known to be of the config, before it is built.

    Raises:
        CacheError: the cache at `spec.path` is of something else.
        RefusedError: the config cannot be met, or more rows are bad than the budget allows.
    """
    path = absolute(spec.path)
    tensor_store(path)
    if (ledger := read_ledger(path)) is not None:
        return _finished_before(spec, path, ledger, _checked_tokenizer(spec))
    begun = read_plan(path)
    new_units = spec.source.units(spec.split) if begun is None else []  # fails before a folder is made
    workers = _workers(spec, begun.units if begun else new_units, workers)
    busy = min(_cores() if workers is None else workers, len(begun.units if begun else new_units))
    with nursery_of(UnitBuild.__module__) if busy else nullcontext() as nursery:
        tokenizer = _checked_tokenizer(spec, nursery, _threads(busy))
        new_plan = _new_plan(spec, tokenizer, new_units) if begun is None else None
        with alone_in(path):
            if (ledger := read_ledger(path)) is not None:
                return _finished_before(spec, path, ledger, tokenizer)
            _clean_private(path)
            plan = _plan_in_force(spec, path, tokenizer, new_plan)
            units = _units(spec, plan)
            if on_begun is not None:
                on_begun()
            _build_units(spec, path, plan, units, tokenizer, workers, on_progress, in_order=in_order)
            _check(spec, path, plan, tokenizer)  # the sources may have changed meanwhile
            ledger = _finish(spec, path, plan)
    logger.debug("%s: %s documents, %s tokens in %s", spec.name, f"{ledger.rows:,}", f"{ledger.tokens:,}", path)
    return ledger


def _workers(spec: CacheSpec, units: Sequence[Unit], asked: int | None) -> int | None:
    """How many processes build: what was asked for; none where to start one would take longer than the work."""
    sizes = [spec.source.unit_bytes(unit) for unit in units]
    if asked is None and all(sizes) and sum(sizes) < _SMALL_BYTES:  # 0 is a size that nobody knows
        return 0
    return asked


def _cores() -> int:
    """How many cores there are for this build, as map_shards counts them."""
    step = current_step()
    return (step.num_cpus if step else None) or os.cpu_count() or 1


def _threads(busy: int) -> int:
    """How many threads each of so many busy workers may use."""
    return max(1, _cores() // max(1, busy))


def _checked_tokenizer(spec: CacheSpec, nursery: Nursery | None = None, threads: int = 1) -> Tokenizer:
    """The reference tokenizer; what never could work with it fails here. The nursery loads the fast one meanwhile."""

    def prepare(text: bytes) -> None:
        if nursery is not None and LOSS_MASK not in spec.row_format.columns():  # masks need the reference
            nursery.prepare(loading(text, threads))

    tokenizer = load_tokenizer(
        spec.tokenizer,
        vocab_size=spec.vocab_size,
        engine="tokenizers",
        ends_texts=spec.row_format.ends_texts(spec.options),
        on_text=prepare,
    )
    spec.row_format.encoder(tokenizer, spec.options)
    return tokenizer


def _finished_before(spec: CacheSpec, path: str, ledger: CacheLedger, tokenizer: Tokenizer) -> CacheLedger:
    _check(spec, path, ledger, tokenizer)
    check_segments(path, ledger)
    if MAPS in volume_of(path).names(path):  # the build was killed just before it would have cleaned up
        _clean(path)
    logger.info("%s: was finished before, and is what the config asks for", spec.name)
    return ledger


def _plan_in_force(spec: CacheSpec, path: str, tokenizer: Tokenizer, new_plan: CachePlan | None) -> CachePlan:
    """The plan of a cache that was begun, or a new one; a plan of which nothing was tokenized yet makes way."""
    plan = read_plan(path)
    is_held = protocol_of(path) == "file"  # elsewhere another process may work by this plan right now
    if plan is not None and is_held and not published_segments(path):
        _clean(path)
        volume_of(path).remove(join(path, PLAN))
        plan = None
    if plan is None:
        return write_plan(path, new_plan or _new_plan(spec, tokenizer, spec.source.units(spec.split)))
    _check(spec, path, plan, tokenizer)
    logger.info("%s: finishing the cache that was begun at %s", spec.name, path)
    return plan


def _check(spec: CacheSpec, path: str, stored: CachePlan | CacheLedger, tokenizer: Tokenizer) -> None:
    changes = source_changes(stored, spec.source, spec.split, _redacted(plain_value(spec.source)))
    row_format, source = spec.row_format.identity(tokenizer, spec.options), _redacted(spec.source.identity(spec.split))
    check_agreement(path, stored, _record(tokenizer), row_format, source, changes)


def _record(tokenizer: Tokenizer) -> TokenizerRecord:
    return TokenizerRecord(
        name=Redactor().text(tokenizer.name), fingerprint=tokenizer.fingerprint, vocab_size=tokenizer.vocab_size
    )


def _new_plan(spec: CacheSpec, tokenizer: Tokenizer, units: list[Unit]) -> CachePlan:
    if not units:
        raise RefusedError(
            f"found nothing to read in the {spec.split} split of {spec.name}; needed at least one file with a row. "
            "Check its urls."
        )
    ids = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    dtypes = {INPUT_IDS: ids, LOSS_MASK: "uint8", LOSS_WEIGHTS: "float32"}
    redactor = Redactor()
    return CachePlan(
        tokenizer=_record(tokenizer),
        row_format=spec.row_format.identity(tokenizer, spec.options),
        columns={column: dtypes[column] for column in spec.row_format.columns()},
        sources=[
            msgspec.structs.replace(file, path=redactor.text(file.path))
            for file in spec.source.fingerprints(spec.split)
        ],
        source_identity=_redacted(spec.source.identity(spec.split)),
        source_config=_redacted(plain_value(spec.source)),
        units=[_redacted(unit) for unit in units],
        segment_tokens=spec.segment_tokens,
    )


def _redacted(record: Mapping[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], Redactor().value(record))


def _units(spec: CacheSpec, plan: CachePlan) -> list[Unit]:
    """The units of a plan with the secrets that their places may have, which are never stored."""
    if not any(MASK in str(unit) for unit in plan.units):
        return plan.units
    units = spec.source.units(spec.split)
    if [_redacted(unit) for unit in units] != plan.units:
        raise CacheError(
            f"found {spec.path} begun with other pieces of its files than this version of ponente reads, and their "
            "places hold secrets that were not stored; needed the same. Remove the folder and build it again."
        )
    return units


def _on_trial(spec: CacheSpec, units: list[Unit], tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer for workers, which use the fast engine if it is right about samples of the corpus."""
    step = max(1, len(units) // _SAMPLED_UNITS)
    return on_trial(tokenizer, [text for unit in units[::step][:_SAMPLED_UNITS] for text in _sample(spec, unit)])


def _sample(spec: CacheSpec, unit: Unit) -> Iterator[str]:
    """Some of the first texts of a unit."""
    room = _SAMPLE_CHARACTERS
    for batch in spec.source.read(unit, spec.row_format.fields()):
        for values in batch.values.values():
            for value in values:
                if room <= 0:
                    return
                if isinstance(value, str):
                    yield value[:room]
                    room -= len(value)
        return


def _build_units(
    spec: CacheSpec,
    path: str,
    plan: CachePlan,
    units: list[Unit],
    tokenizer: Tokenizer,
    workers: int | None,
    on_progress: Callable[[BuildProgress], None] | None,
    *,
    in_order: bool,
) -> None:
    busy = min(_cores() if workers is None else workers, len(units))
    build = UnitBuild(
        cache=path,
        source=spec.source,
        row_format=spec.row_format,
        options=spec.options,
        tokenizer=_on_trial(spec, units, tokenizer),
        threads=_threads(busy),
        columns=plan.columns,
        segment_tokens=plan.segment_tokens,
        max_bad_records=spec.max_bad_records,
    )
    shards = [{"index": index, "unit": unit} for index, unit in enumerate(units)]
    meter = Meter(spec, path, plan, join(path, MAPS, _UNITS), on_progress)

    def weight(shard: Mapping[str, Any]) -> float:
        return -float(shard["index"]) if in_order else float(spec.source.unit_bytes(shard["unit"]))

    map_shards(build, shards, name=_UNITS, state_path=path, workers=workers, weight=weight, on_counts=meter)


def _finish(spec: CacheSpec, path: str, plan: CachePlan) -> CacheLedger:
    """Adds up the segments and writes quarantine, ledger and marker."""
    segments: list[SegmentRecord] = []
    empty_rows, bad_rows = 0, 0
    for unit in range(len(plan.units)):
        notes = list(notes_of_unit(path, unit))
        if not notes or not notes[-1][1].is_last:
            raise CacheError(
                f"found unit {unit} of {path} without its last segment, although it was built; needed all of them. "
                "Run the command again."
            )
        for name, note in notes:
            segments.append(SegmentRecord(name, note.rows, note.tokens))
            empty_rows, bad_rows = empty_rows + note.empty_rows, bad_rows + note.bad_rows
    if bad_rows:
        _write_quarantine(spec, path, segments, bad_rows)
    rows = sum(segment.rows for segment in segments)
    if not rows:
        raise RefusedError(
            f"found no row with tokens in the {spec.split} split of {spec.name} ({empty_rows} empty, {bad_rows} bad); "
            f"needed at least one. Check its files and the format's keys, then remove {path}."
        )
    ledger = CacheLedger(
        tokenizer=plan.tokenizer,
        row_format=plan.row_format,
        columns=plan.columns,
        rows=rows,
        tokens=sum(segment.tokens for segment in segments),
        empty_rows=empty_rows,
        bad_rows=bad_rows,
        sources=plan.sources,
        source_identity=plan.source_identity,
        source_config=plan.source_config,
        segments=segments,
    )
    write_ledger(path, ledger)
    _clean(path)
    return ledger


def _write_quarantine(spec: CacheSpec, path: str, segments: list[SegmentRecord], bad_rows: int) -> None:
    place = join(path, QUARANTINE)
    volume_of(path).replace(place, b"".join(read_quarantine(path, segment.name) for segment in segments))
    if bad_rows > spec.max_bad_records:
        raise RefusedError(
            f"found {bad_rows:,} rows of {spec.name} that could not be read or encoded (listed in {place}); "
            f"data.max_bad_records allows {spec.max_bad_records}. Allow as many (what is tokenized stays), or correct "
            f"the files and remove {path}."
        )
    logger.warning("%s: %s rows were set aside; they are listed in %s", spec.name, f"{bad_rows:,}", place)


def _clean(path: str) -> None:
    """Removes what only an unfinished build needs."""
    _clean_private(path)
    volume_of(path).remove(join(path, MAPS))


def _clean_private(path: str) -> None:
    """Removes what killed writers left behind."""
    volume = volume_of(path)
    for folder in (path, join(path, SEGMENTS)):
        for place in volume.leftovers(folder):
            volume.remove(place)
