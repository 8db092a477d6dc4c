"""Reading YAML: any URL, includes, numbers as users write them, and the place of everything."""

from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from ponente.config.document import read_document
from ponente.config.problems import ConfigError


def write(folder: Path, **files: str) -> Path:
    """Files by name, without .yaml; the first one's path."""
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    return paths[0]


def error_of(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_document(str(path))
    assert "found " in str(caught.value) and "needed " in str(caught.value)
    assert str(caught.value).rstrip().endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1E-4", 1e-4),
        ("1e-4", 1e-4),
        (".5e3", 500.0),
        ("1e5", 1e5),
        ("+1.5E+3", 1500.0),
        ("-2.", -2.0),
        ("6.02e23", 6.02e23),
        ("1_000", 1000),
        ("0x10", 16),
        ("-3", -3),
        (".inf", float("inf")),
        ("true", True),
        ("off", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("!!float 3", 3.0),
        ("!!str 3", "3"),
    ],
)
def test_scalars_are_read_as_users_mean_them(text: str, value: object, tmp_path: Path) -> None:
    read = read_document(str(write(tmp_path, c=f"a: {text}"))).raw["a"]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["1e", "e5", "1.2.3", "15m", "0123", "12:30", "2024-01-01", "1e5x", "p=f32,c=bfloat16", "'1e5'", "none", "-"],
)
def test_versions_times_and_revisions_stay_text(text: str, tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, c=f"a: {text if text != '-' else chr(34) + '-' + chr(34)}"))).raw == {
        "a": text.strip("'")
    }


def test_keys_are_always_text(tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, c="1: a\non: b\n1e3: c\nnull: d"))).raw == {
        "1": "a",
        "on": "b",
        "1e3": "c",
        "null": "d",
    }


def test_an_empty_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, c="# nothing\n"))).raw == {}


def test_a_file_is_read_from_any_url() -> None:
    folder = f"memory://{uuid4()}"
    with fsspec.open(f"{folder}/a/c.yaml", "w") as file:
        file.write("x: !include ../b.yaml\n")
    with fsspec.open(f"{folder}/b.yaml", "w") as file:
        file.write("y: 1\n")
    tree = read_document(f"{folder}/a/c.yaml")
    assert tree.raw == {"x": {"y": 1}}
    assert tree.place(("x", "y")).where == f"{folder}/b.yaml:1"


def test_every_value_knows_its_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, c="a:\n  b: 1.10\n  c:\n    - 5\n    - d: x\n")
    tree = read_document(str(path))
    lines = {".".join(key): place.where.rpartition(":")[2] for key, place in tree.places.items()}
    assert lines == {"a": "1", "a.b": "2", "a.c": "3", "a.c.0": "4", "a.c.1": "5", "a.c.1.d": "5"}
    assert tree.place(("a", "b")).where == f"{path}:2" and tree.place(("a", "b")).text == "1.10"
    assert str(tree.place(("a", "zz", "y"))) == f"a.zz.y ({path}:1)"


def test_an_include_may_stand_anywhere_and_nest(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        c="model: !include models/small.yaml\nlist:\n  - !include leaf.yaml\n",
        **{"models/small": "type: gpt2\nrope: !include ../leaf.yaml\n", "leaf": "theta: 1E4\n"},
    )
    tree = read_document(str(path))
    assert tree.raw == {"model": {"type": "gpt2", "rope": {"theta": 1e4}}, "list": [{"theta": 1e4}]}
    assert tree.place(("model",)).where == f"{path}:1"
    assert tree.place(("model", "rope")).where == f"{tmp_path}/models/small.yaml:2"
    assert str(tree.place(("list", "0", "theta"))) == f"list.0.theta ({tmp_path}/leaf.yaml:1)"


def test_an_include_may_name_an_absolute_path_or_a_url(tmp_path: Path) -> None:
    url = f"memory://{uuid4()}/m.yaml"
    with fsspec.open(url, "w") as file:
        file.write(f"z: !include {tmp_path}/leaf.yaml\n")
    path = write(tmp_path / "sub", c=f"x: !include {tmp_path}/leaf.yaml\ny: !include {url}\n")
    write(tmp_path, leaf="1")
    assert read_document(str(path)).raw == {"x": 1, "y": {"z": 1}}
    assert read_document(f"file://{path}").raw == {"x": 1, "y": {"z": 1}}


def test_an_include_may_be_the_whole_document_or_be_merged_into_it(tmp_path: Path) -> None:
    base = "a: 1\nb: {c: 2}\n"
    assert read_document(str(write(tmp_path, whole="!include base.yaml", base=base))).raw == {"a": 1, "b": {"c": 2}}
    merged = read_document(str(write(tmp_path, merged="<<: !include base.yaml\na: 5\n", base=base)))
    assert merged.raw == {"a": 5, "b": {"c": 2}}
    assert merged.place(("a",)).where.endswith("merged.yaml:2")
    assert merged.place(("b", "c")).where.endswith("base.yaml:2")


def test_anchors_and_merge_keys_work_and_the_first_of_several_wins(tmp_path: Path) -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*x, *y]\n  c: 3\n"
    assert read_document(str(write(tmp_path, c=text))).raw["z"] == {"a": 1, "b": 1, "c": 3}


def test_copies_of_an_anchor_are_independent(tmp_path: Path) -> None:
    raw = read_document(str(write(tmp_path, c="x: &x {a: [1]}\ny: *x\n"))).raw
    raw["x"]["a"].append(2)
    assert raw["y"] == {"a": [1]}


def test_a_circle_of_includes_is_refused_with_its_chain(tmp_path: Path) -> None:
    path = write(tmp_path, a="x: !include b.yaml", b="y: !include sub/../c.yaml", c="z: !include a.yaml")
    text = error_of(path)
    assert f"{path} → {tmp_path}/b.yaml → {tmp_path}/c.yaml → {tmp_path}/a.yaml" in text
    assert f"included in {tmp_path}/c.yaml:1" in text
    assert "c.yaml → " in error_of(write(tmp_path, c="a: !include c.yaml"))


def test_the_same_file_may_be_included_twice(tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, a="x: !include b.yaml\ny: !include b.yaml", b="1"))).raw == {
        "x": 1,
        "y": 1,
    }


def test_a_missing_file_is_told_with_who_asked_for_it(tmp_path: Path) -> None:
    text = error_of(tmp_path / "absent.yaml")
    assert f"no file at {tmp_path}/absent.yaml" in text and "Check the path" in text
    text = error_of(write(tmp_path, a="x: 1\ny: !include gone.yaml\n"))
    assert f"no file at {tmp_path}/gone.yaml (included in {tmp_path}/a.yaml:2)" in text


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "a folder" in error_of(tmp_path) and "Name the file in it" in error_of(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\x00")
    assert "not UTF-8" in error_of(tmp_path / "bytes.yaml")
    assert "nosuch://x/c.yaml" in error_of("nosuch://x/c.yaml")


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, c="a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert f"found a.b twice, in lines 2 and 4 ({path}:4)" in error_of(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb: [1, 2\n", 3), ("a: 1\n  b: 2\n", 2), ("a: *nothing\n", 1), ("---\na: 1\n---\nb: 2\n", 3)],
)
def test_broken_yaml_is_told_with_file_and_line(text: str, line: int, tmp_path: Path) -> None:
    path = write(tmp_path, c=text)
    assert f"broken YAML in {path}:{line}" in error_of(path)


@pytest.mark.parametrize("text", ["- 1\n", "just words\n", "5\n"])
def test_a_document_must_have_keys(text: str, tmp_path: Path) -> None:
    assert "needed keys with values" in error_of(write(tmp_path, c=text))


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.getcwd []", "!!python/name:os.system x", "!mine x"])
def test_tags_make_nothing_but_plain_values(tag: str, tmp_path: Path) -> None:
    path = write(tmp_path, c=f"a: 1\nb: {tag}\n")
    text = error_of(path)
    assert f"{path}:2" in text and "plain values" in text


def test_aliases_cannot_fill_the_memory_or_hold_themselves(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    assert "more than" in error_of(write(tmp_path, c=bomb))
    assert "holds itself" in error_of(write(tmp_path, c="a: &a [1, *a]\n"))
    assert "levels of nesting" in error_of(write(tmp_path, c="a: " + "[" * 5000 + "]" * 5000))


def test_odd_keys_and_includes_are_told_with_their_line(tmp_path: Path) -> None:
    assert "list or mapping as a key" in error_of(write(tmp_path, c="? [a, b]\n: 1\n"))
    assert "without a single file" in error_of(write(tmp_path, c="a: !include [x.yaml, y.yaml]\n"))
    assert "without a single file" in error_of(write(tmp_path, c="a: !include\n"))
    assert "the tag tag:yaml.org,2002:set as a" in error_of(write(tmp_path, c="a: !!set {x, y}\n"))
    assert "the tag !mine as a" in error_of(write(tmp_path, c="a: !mine [x, y]\n"))
    assert "after <<" in error_of(write(tmp_path, c="a:\n  <<: 5\n"))
    for tag, text in {"int": "x", "bool": "5", "null": "5", "float": "1.2.3"}.items():
        assert f"{text!r} is no {tag} as a" in error_of(write(tmp_path, c=f"a: !!{tag} {text}\n"))
