"""The counts of workers as the progress of a build; what earlier runs finished is counted in."""

import time
from collections.abc import Callable, Mapping

from ponente.cluster.context import report_progress
from ponente.store.token_cache.ledger import CachePlan
from ponente.store.token_cache.segment import notes_of_unit
from ponente.store.volume import volume_of
from ponente.tokens.progress import BuildProgress
from ponente.tokens.spec import CacheSpec


class Meter:
    """Turns the counts of workers into progress: what earlier runs finished is counted in."""

    def __init__(
        self,
        spec: CacheSpec,
        path: str,
        plan: CachePlan,
        records: str,
        on_progress: Callable[[BuildProgress], None] | None,
    ) -> None:
        self._name = spec.name
        self._on_progress = on_progress
        self._total = sum(spec.source.unit_bytes(unit) for unit in plan.units)
        recorded = set(volume_of(path).names(records))  # others are gone through, and count, again
        done = [
            (spec.source.unit_bytes(unit), _counts_of_unit(path, index))
            for index, unit in enumerate(plan.units)
            if f"{index:05d}.json" in recorded
        ]
        self._before = sum(size for size, _ in done)
        self._documents = sum(rows for _, (rows, _) in done)
        self._tokens = sum(tokens for _, (_, tokens) in done)
        self._began = time.monotonic()

    def __call__(self, counts: Mapping[str, int]) -> None:
        progress = BuildProgress(
            name=self._name,
            documents=self._documents + counts.get("documents", 0),
            tokens=self._tokens + counts.get("tokens", 0),
            source_bytes=self._before + counts.get("bytes", 0),
            total_bytes=self._total,
            bytes_before=self._before,
            seconds=time.monotonic() - self._began,
        )
        report_progress(progress.source_bytes, progress.total_bytes, unit="bytes", note=str(progress))
        if self._on_progress is not None:
            self._on_progress(progress)


def _counts_of_unit(path: str, unit: int) -> tuple[int, int]:
    """Rows and tokens of what is published of a unit."""
    notes = [note for _, note in notes_of_unit(path, unit)]
    return sum(note.rows for note in notes), sum(note.tokens for note in notes)
