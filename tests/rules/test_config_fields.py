"""The golden file of config fields: a changed default or kind is a conscious act.

`config_fields.json` lists every field of every config class with its kind and default. When this fails on purpose,
raise the class's `identity_version` if old results no longer mean the same, and renew the file:
`PONENTE_WRITE_GOLDEN=1 make unit`.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import os
import pkgutil
from pathlib import Path
from typing import Any

import ponente
from ponente.config.fields import FieldSpec, class_kind, field_specs
from ponente.executor.reference import Reference, load

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("config_fields.json")


def package_modules() -> list[Any]:
    names = [name for _, name, _ in pkgutil.walk_packages(ponente.__path__, "ponente.") if name != "ponente.__main__"]
    return [importlib.import_module(name) for name in names]


def tutorial_modules() -> list[Any]:
    """Experiments that ship with the project: their configs have identities too."""
    scripts = sorted((ROOT / "experiments" / "tutorials").glob("*.py"))
    return [inspect.getmodule(_first_function(script)) for script in scripts]


def _first_function(script: Path) -> Any:
    tree = ast.parse(script.read_text())
    name = next(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return load(Reference(module=script.stem, qualname=name, script=str(script)))


def config_classes() -> dict[str, type]:
    found = {}
    for module in [*package_modules(), *tutorial_modules()]:
        for name, value in vars(module).items():
            is_config = name.endswith("Config") or hasattr(value, "config_kind")
            if is_config and dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                found[f"{module.__name__}.{name}"] = value
    return found


def describe(spec: FieldSpec) -> dict[str, str]:
    default = "(none)" if spec.default is dataclasses.MISSING else repr(spec.default)
    return {"kind": spec.kind.value, "default": default}


def actual() -> dict[str, Any]:
    return {
        name: {
            "kind": class_kind(cls).value,
            "identity_version": getattr(cls, "identity_version", 1),
            "fields": {spec.name: describe(spec) for spec in field_specs(cls)},
        }
        for name, cls in sorted(config_classes().items())
    }


def test_no_kind_or_default_of_a_config_field_has_changed_unnoticed() -> None:
    found = actual()
    if os.environ.get("PONENTE_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text()), (
        "a config field, its kind or its default differs from tests/rules/config_fields.json; "
        "the docstring of this file says what to do"
    )


def test_config_classes_are_frozen_and_keyword_only() -> None:
    for name, cls in config_classes().items():
        parameters = inspect.signature(cls).parameters.values()
        assert cls.__dataclass_params__.frozen, f"{name} is not frozen"  # type: ignore[attr-defined]
        assert all(one.kind is one.KEYWORD_ONLY for one in parameters), f"{name} takes positional arguments"


def test_every_config_field_is_read_by_some_code() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    read = {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
    }
    unread = [
        f"{name}.{spec.name}"
        for name, cls in config_classes().items()
        for spec in field_specs(cls)
        if spec.name not in read
    ]
    assert unread == []
