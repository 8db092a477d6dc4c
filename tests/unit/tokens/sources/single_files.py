"""A source of a user's own, importable in worker processes."""

from dataclasses import dataclass

from ponente.store.sources import SourceConfig, Unit, UrlSourceConfig
from ponente.store.sources.units import plan_units


@SourceConfig.register_subclass("single_files")
@dataclass(frozen=True, kw_only=True)
class SingleFiles(UrlSourceConfig):
    """As url, but small files are not taken together."""

    def units(self, split: str) -> list[Unit]:
        return plan_units(self.files(split), self._reader_of, group_bytes=1)
