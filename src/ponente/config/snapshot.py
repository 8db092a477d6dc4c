"""A config as YAML text: every field with its value, defaults too, and the `type:` of every choice.

In: a config object. Out: text that reads back as an equal config, except that secrets are masked: who stores it hands
in what masks them, for that knowledge lives in `store`.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import draccus
import yaml
from draccus.choice_types import ChoiceType

from ponente.config.scalars import STR, implicit_resolvers

_ODD_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


class _Dumper(yaml.SafeDumper):
    """Quotes whatever our reader would take for a number, and writes no aliases."""

    yaml_implicit_resolvers = implicit_resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """A scalar; PyYAML folds these characters as line ends unless the quotes are double."""
        return self.represent_scalar(STR, text, style='"' if _ODD_LINE_ENDS.search(text) else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def snapshot(config: Any, redact: Callable[[object], object], *, plugins: Sequence[str] = ()) -> str:
    """The YAML of a config, whole.

    Args:
        redact: takes the plain values and gives them back without secrets, such as `Redactor.value`.
        plugins: what was imported to know its classes; `load_config` will import it again.
    """
    plain = redact({**({"plugins": list(plugins)} if plugins else {}), **plain_value(config)})
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def plain_value(value: Any) -> Any:
    """A config value as dicts, lists and scalars, in the form in which it would be written in YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: plain_value(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init
        }
        return {**_choice_of(value), **fields}
    if isinstance(value, enum.Enum):
        return value.value if type(value.value) in (str, int) else value.name
    if isinstance(value, Mapping):
        return {plain_value(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain_value(item) for item in value), key=repr)
    if isinstance(value, PurePath):
        return str(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    return draccus.encode(value)


def _choice_of(value: Any) -> dict[str, str]:
    """`type:` where the class is registered under a name."""
    if not isinstance(value, ChoiceType):
        return {}
    known = type(value).get_known_choices()
    names = [name for name, cls in known.items() if cls is type(value)]
    return {"type": names[0]} if names else {}
