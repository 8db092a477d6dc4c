"""Defaults that results rest on: left out of identity, so a change of one re-runs nothing, but it is told.

In: the defaults stored with a commit, and a node as it is now. Out: words for the plan, where a field that the step's
config leaves at its default has another default than when the result was made.
"""

import json
from collections.abc import Iterator
from typing import Any

from ponente.executor.graph import Node
from ponente.store.redaction import may_be_masked

_MAX_TOLD = 3


def changed_defaults(stored: str, node: Node) -> list[str]:
    """What to say of defaults that were changed since a result was made; nothing where none matters to it."""
    if stored == node.defaults:
        return []
    before, now = json.loads(stored), json.loads(node.defaults)
    changed = [name for name, text in before.items() if not may_be_masked(text, now.get(name, text))]
    resting = [name for name in changed if _rests_on(node.payload, name)]
    return [f"BUT the default of {name} was {before[name]} then and is {now[name]} now" for name in resting[:_MAX_TOLD]]


def _rests_on(payload: dict[str, Any], name: str) -> bool:
    """Whether the config leaves the field `Class.field` at its default somewhere: not set, or the class not told."""
    cls, _, field = name.rpartition(".")
    instances = list(_instances(payload.get("config"), cls))
    return not instances or any(field not in instance for instance in instances)


def _instances(value: Any, cls: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("$type") == cls:
            yield value
        for item in value.values():
            yield from _instances(item, cls)
    elif isinstance(value, list):
        for item in value:
            yield from _instances(item, cls)
