"""What differs between the config that a run was started with, or that of weights it begins with, and its own."""

from collections.abc import Iterator, Mapping
from typing import Any

from ponente.config.fields import Kind, field_specs
from ponente.config.snapshot import plain_value
from ponente.models.lm import LmConfig

_NOT_COMPUTED = {"max_seq_len", "initializer_range", "reference_checkpoint"}  # with given weights and rows that fit


def changed_fields(config: Any, stored: Mapping[str, Any], redacted: Mapping[str, Any]) -> list[str]:
    """The fields that say what is trained, and not how or where, with their values then and now.

    Args:
        stored: the config then, as plain values without secrets.
        redacted: the config now, in the same form.
    """
    return [_told(*change) for change in _changed("", config, stored, redacted)]


def other_model(config: LmConfig, stored: Mapping[str, Any]) -> list[str]:
    """The same of a model alone, whose weights this one begins with: only what is computed with them counts."""
    changes = _changed("", config, stored, plain_value(config))
    return [_told(f"model.{path}", then, now) for path, then, now in changes if path not in _NOT_COMPUTED]


def _told(path: str, then: Any, now: Any) -> str:
    return f"{path}: {then} → {now}"


def _changed(
    prefix: str, config: Any, stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    if stored.get("type") != now.get("type"):
        yield f"{prefix}type", stored.get("type"), now.get("type")
        return  # the fields of the one say nothing of the other's
    kind: type = type(config)
    for spec in field_specs(kind):
        if spec.kind is not Kind.IDENTITY:
            continue
        value, path = getattr(config, spec.name), f"{prefix}{spec.name}"
        then, today = stored.get(spec.name, plain_value(spec.default)), now.get(spec.name)
        if hasattr(value, "__dataclass_fields__") and isinstance(then, Mapping) and isinstance(today, Mapping):
            yield from _changed(f"{path}.", value, then, today)
        elif then != today:
            yield path, then, today
