"""How far a training run is, as people read it: one line."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run after `step` of its `steps`; None where something is not known (yet)."""

    step: int
    steps: int
    loss: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None  # a fraction
    seconds_left: float | None = None
    next_checkpoint_seconds: float | None = None
    note: str | None = None

    def __str__(self) -> str:
        """For instance "step 1,234/10,000 · loss 3.214 · 12.3k tok/s · MFU 41% · ETA 1h 02m · next checkpoint 4m"."""
        parts = [f"step {self.step:,}/{self.steps:,}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.tokens_per_second is not None:
            parts.append(f"{short_count(self.tokens_per_second)} tok/s")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.0%}")
        if self.seconds_left is not None:
            parts.append(f"ETA {short_duration(self.seconds_left)}")
        if self.next_checkpoint_seconds is not None:
            parts.append(f"next checkpoint {short_duration(self.next_checkpoint_seconds)}")
        if self.note:
            parts.append(self.note)
        return " · ".join(parts)

    def within(self, width: int) -> str:
        """The line, with a shorter word or two where it is wider than `width`."""
        text = str(self)
        return text if len(text) <= width else text.replace("next checkpoint", "ckpt").replace(" tok/s", "/s")


def short_count(count: float) -> str:
    """A count to three digits: 999, 12.3k, 1.23M, 4.56B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size * 0.9995:
            whole = count / size
            return f"{whole:.{2 if whole < 9.995 else 1 if whole < 99.95 else 0}f}{unit}"
    return f"{count:.0f}"


def short_duration(seconds: float) -> str:
    """A duration in its two largest units: 45s, 4m, 1h 02m, 2d 03h; minutes stand alone from ten on."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m {whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"
