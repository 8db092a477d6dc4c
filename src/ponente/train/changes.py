"""What differs between the config that a run was started with and the one that it goes on with."""

from collections.abc import Mapping
from typing import Any

from ponente.config.fields import Kind, field_specs
from ponente.config.snapshot import plain_value


def changed_fields(config: Any, stored: Mapping[str, Any], redacted: Mapping[str, Any]) -> list[str]:
    """The fields that say what is trained, and not how or where, with their values then and now.

    Args:
        stored: the config then, as plain values without secrets.
        redacted: the config now, in the same form.
    """
    return list(_changed("", config, stored, redacted))


def _changed(prefix: str, config: Any, stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    kind: type = type(config)
    for spec in field_specs(kind):
        if spec.kind is not Kind.IDENTITY:
            continue
        value, path = getattr(config, spec.name), f"{prefix}{spec.name}"
        then, today = stored.get(spec.name, plain_value(spec.default)), now.get(spec.name)
        if hasattr(value, "__dataclass_fields__") and isinstance(then, Mapping) and isinstance(today, Mapping):
            found += _changed(f"{path}.", value, then, today)
            if then.get("type") != today.get("type"):
                found.append(f"{path}.type: {then.get('type')} → {today.get('type')}")
        elif then != today:
            found.append(f"{path}: {then} → {today}")
    return found
