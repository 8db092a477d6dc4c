"""Snapshots: the whole of a config as YAML that reads back as the same config, without secrets."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import draccus
import fsspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ponente.config.load import load_config
from ponente.config.snapshot import snapshot
from ponente.store.redaction import Redactor


class Color(enum.StrEnum):
    RED = "r"
    BLUE = "b"


class Level(enum.Enum):
    LOW = (1, 2)
    HIGH = (3, 4)


@dataclass(frozen=True, kw_only=True)
class Part(draccus.ChoiceRegistry):
    pass


@Part.register_subclass("leaf")
@dataclass(frozen=True, kw_only=True)
class Leaf(Part):
    size: float = 1.0
    token: str | None = None


@Part.register_subclass("branch")
@dataclass(frozen=True, kw_only=True)
class Branch(Part):
    parts: tuple[Part, ...] = ()
    named: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Whole:
    text: str = "x"
    maybe: str | None = None
    number: int | float | None = None
    either: bool | str | int = False
    words: tuple[str, ...] = ("a",)
    pair: tuple[int, str] = (1, "b")
    lists: list[list[int]] = field(default_factory=list)
    unique: frozenset[str] = frozenset()
    by_step: dict[int, float] = field(default_factory=dict)
    color: Color = Color.RED
    level: Level = Level.LOW
    folder: Path = Path("/a/b")
    part: Part = field(default_factory=Leaf)
    leaf: Leaf = field(default_factory=Leaf)
    optional: Branch | None = None
    api_key: str | None = None


def same(value: object) -> object:
    return value


def read_back(text: str) -> Whole:
    url = f"memory://{uuid4()}.yaml"
    with fsspec.open(url, "wb") as file:
        file.write(text.encode())
    loaded = load_config(Whole, url)
    fsspec.filesystem("memory").rm(url)
    assert loaded.warnings == ()
    return loaded.config


def test_a_snapshot_tells_every_field_with_its_default_and_every_type() -> None:
    assert yaml.safe_load(snapshot(Whole(optional=Branch(parts=(Leaf(),))), same)) == {
        "text": "x",
        "maybe": None,
        "number": None,
        "either": False,
        "words": ["a"],
        "pair": [1, "b"],
        "lists": [],
        "unique": [],
        "by_step": {},
        "color": "r",
        "level": "LOW",
        "folder": "/a/b",
        "part": {"type": "leaf", "size": 1.0, "token": None},
        "leaf": {"type": "leaf", "size": 1.0, "token": None},
        "optional": {"type": "branch", "parts": [{"type": "leaf", "size": 1.0, "token": None}], "named": {}},
        "api_key": None,
    }


texts = st.text(max_size=12) | st.sampled_from(
    ["1e5", "1E-4", "0123", "12:30", "yes", "null", "~", "", "<<", "=", "none", ".5", "2024-01-01", "a: b", "!x", "*y"]
)
numbers = st.integers() | st.floats(allow_nan=False)
parts: st.SearchStrategy[Part] = st.recursive(
    st.builds(Leaf, size=st.floats(allow_nan=False), token=st.none() | texts),
    lambda inner: st.builds(
        Branch, parts=st.lists(inner, max_size=2).map(tuple), named=st.dictionaries(texts, inner, max_size=2)
    ),
    max_leaves=4,
)
wholes = st.builds(
    Whole,
    text=texts,
    maybe=st.none() | texts,
    number=st.none() | numbers,
    either=st.booleans() | texts | st.integers(),
    words=st.lists(texts, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), texts),
    lists=st.lists(st.lists(st.integers(), max_size=2), max_size=2),
    unique=st.frozensets(texts, max_size=3),
    by_step=st.dictionaries(st.integers(), st.floats(allow_nan=False), max_size=3),
    color=st.sampled_from(Color),
    level=st.sampled_from(Level),
    part=parts,
    leaf=st.builds(Leaf, size=st.floats(allow_nan=False)),
    optional=st.none() | st.builds(Branch, parts=st.lists(parts, max_size=2).map(tuple)),
)


@given(wholes)
def test_a_snapshot_reads_back_as_an_equal_config_of_equal_types(config: Whole) -> None:
    back = read_back(snapshot(config, same))
    assert back == config
    for name in ("number", "either", "words", "pair", "lists", "unique"):
        assert type(getattr(back, name)) is type(getattr(config, name))
    assert snapshot(back, same) == snapshot(config, same)


@pytest.mark.parametrize(
    "text", ["a" * 500, "word " * 80, "line\nline\n\n end ", "\x85\u2028\ufeff\x07", "\x85", "\u2029", "é → 漢字"]
)
def test_long_and_odd_text_reads_back(text: str) -> None:
    config = Whole(text=text, words=(text,), part=Branch(named={text[:60]: Leaf()}))
    assert read_back(snapshot(config, same)) == config


def test_secrets_are_masked_and_the_rest_reads_back() -> None:
    secret = "hf_" + "a1" * 12
    config = Whole(api_key="very-secret-word", text=f"s3://u:{secret}@h/x", part=Leaf(token=secret))
    text = snapshot(config, Redactor().value)
    assert "very-secret-word" not in text and secret not in text
    back = read_back(text)
    assert (back.api_key, back.text, back.part) == ("***", "s3://***@h/x", Leaf(token="***"))


def test_a_snapshot_may_name_the_plugins_that_its_classes_need() -> None:
    raw: Any = yaml.safe_load(snapshot(Whole(), same, plugins=("/x/mine.py",)))
    assert raw.pop("plugins") == ["/x/mine.py"] and raw == yaml.safe_load(snapshot(Whole(), same))
