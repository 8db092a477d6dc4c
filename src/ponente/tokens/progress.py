"""How far a cache build is, for bars, logs and `ponente status`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BuildProgress:
    """What a build has done. `source_bytes` are those of the files as they lie there, compressed or not."""

    name: str
    documents: int
    tokens: int
    source_bytes: int
    total_bytes: int  # 0 where the source does not know
    bytes_before: int  # done by earlier runs
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Of the source, in this run."""
        return (self.source_bytes - self.bytes_before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far; None while there is none."""
        if not self.total_bytes or self.bytes_per_second <= 0:
            return None
        return max(0.0, (self.total_bytes - self.source_bytes) / self.bytes_per_second)

    def __str__(self) -> str:
        """As people read it."""
        text = (
            f"{self.name}: {self.documents:,} documents, {self.tokens:,} tokens, {self.bytes_per_second / 1e6:.1f} MB/s"
        )
        return text if self.seconds_left is None else f"{text}, {self.seconds_left:.0f} s left"
