"""Plugins: a user's classes are known before decoding, here and in spawned workers."""

import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import draccus
import pytest

from ponente.config.load import load_config
from ponente.config.plugins import import_plugins
from ponente.config.problems import ConfigError

PLUGIN = """
from dataclasses import dataclass
import draccus

@dataclass(frozen=True, kw_only=True)
class Animal(draccus.ChoiceRegistry):
    pass

@Animal.register_subclass("{name}")
@dataclass(frozen=True, kw_only=True)
class Mine(Animal):
    legs: int = 4

    def sound(self) -> str:
        return "{name} on " + str(self.legs) + " legs"
"""


IS_THE_ZOO = True  # by which plugins find this module, whatever pytest calls it


@dataclass(frozen=True, kw_only=True)
class Animal(draccus.ChoiceRegistry):
    pass


@dataclass(frozen=True, kw_only=True)
class Zoo:
    animal: Animal | None = None


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("plugin_of_"):
            del sys.modules[name]


def registering(name: str) -> str:
    """A plugin that registers with the Animal of this very test."""
    return (
        "import dataclasses, sys\n"
        "Animal = next(m.Animal for m in list(sys.modules.values()) if getattr(m, 'IS_THE_ZOO', False))\n"
        f"@Animal.register_subclass({name!r})\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Animal):\n    legs: int = 4\n"
    )


def error_of(names: list[str], folder: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        import_plugins(names, "plugins (c.yaml:1)", folder)
    assert "needed " in str(caught.value) and "plugins (c.yaml:1)" in str(caught.value)
    return str(caught.value)


def test_a_file_beside_the_yaml_registers_its_classes_before_decoding(tmp_path: Path) -> None:
    (tmp_path / "plugin_of_zoo.py").write_text(registering("owl"))
    (tmp_path / "c.yaml").write_text("plugins: [plugin_of_zoo.py]\nanimal: {type: owl, legs: 2}\n")
    loaded = load_config(Zoo, str(tmp_path / "c.yaml"))
    assert type(loaded.config.animal).__module__ == "plugin_of_zoo" and loaded.config.animal.legs == 2  # type: ignore[union-attr]
    assert loaded.plugins == (f"{tmp_path}/plugin_of_zoo.py",)


def test_a_module_or_a_flag_may_name_a_plugin_and_the_working_folder_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_of_module.py").write_text(registering("bat"))
    (tmp_path / "plugin_of_flag.py").write_text(registering("cat"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_config(Zoo, None, ["--plugins", "plugin_of_module", "--animal.type", "bat"]).plugins == (
        "plugin_of_module",
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.yaml").write_text("animal: {type: cat}\nplugins: plugin_of_flag.py\n")
    assert load_config(Zoo, "sub/c.yaml").plugins == (f"{tmp_path}/plugin_of_flag.py",)
    assert load_config(Zoo, "sub/c.yaml", ["--plugins", "null"]).plugins == ()


def test_a_plugin_that_fails_to_import_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "plugin_of_trouble.py").write_text("import nowhere_to_be_found\n")
    text = error_of([str(tmp_path / "plugin_of_trouble.py")])
    assert "fails to import (ModuleNotFoundError: No module named 'nowhere_to_be_found')" in text
    (tmp_path / "plugin_of_syntax.py").write_text("def\n")
    assert "SyntaxError" in error_of([str(tmp_path / "plugin_of_syntax.py")])
    assert "no_such_module_here" in error_of(["no_such_module_here"])


def test_a_missing_file_is_told_with_the_places_that_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = error_of(["x/absent.py"], "/conf")
    assert f"no file /conf/x/absent.py or {tmp_path}/x/absent.py" in text


@pytest.mark.parametrize("name", ["json.py", "my-plugin.py", "pytest.py", "sys.py", "wave.py"])
def test_a_file_whose_name_is_another_modules_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x = 1\n")
    text = error_of([str(tmp_path / name)])
    assert "a Python name and no other module's" in text and "Rename the file" in text


def test_two_files_of_one_name_are_refused_and_the_same_file_twice_is_not(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plugin_of_both.py").write_text("x = 1\n")
    first, second = (str(tmp_path / folder / "plugin_of_both.py") for folder in ("a", "b"))
    assert import_plugins([first, first], "p") == (first, first)
    assert f"already means {first}" in error_of([second])


@pytest.mark.parametrize("value", ["5", "{a: 1}", "[1]"])
def test_plugins_are_a_list_of_names(value: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins \(flag --plugins\) = .*needed a list of modules"):
        load_config(Zoo, None, ["--plugins", value])


def test_an_object_of_a_plugins_class_reaches_a_spawned_worker(tmp_path: Path) -> None:
    (tmp_path / "plugin_of_worker.py").write_text(
        PLUGIN.format(name="dog") + "\ndef answer(animal, connection):\n    connection.send(animal.sound())\n"
    )
    import_plugins([str(tmp_path / "plugin_of_worker.py")], "p")
    module = sys.modules["plugin_of_worker"]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=module.answer, args=(module.Mine(legs=3), there))
    child.start()
    assert here.poll(60) and here.recv() == "dog on 3 legs"
    child.join(60)
    assert child.exitcode == 0
