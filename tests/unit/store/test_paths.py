"""Places have one name each, and patterns mean the files that a user sees."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.store.expansion import expand
from ponente.store.paths import absolute, basename, join, parent, protocol_of, relative, resolve_prefix
from ponente.store.volume import volume_of

NAMES = st.text(alphabet="abc-._ é", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


def touch(folder: str, *names: str) -> list[str]:
    paths = [join(folder, name) for name in names]
    for path in paths:
        volume_of(path).create(path, b"")
    return paths


@pytest.mark.parametrize(
    "form", ["/data/x", "/data/x/", "/data//x", "/data/./x", "/data/y/../x", "//data/x", "file:///data/x/", "/data/x/."]
)
def test_every_form_of_a_local_path_has_one_name(form: str) -> None:
    assert absolute(form) == "/data/x"


@pytest.mark.parametrize(
    "form", ["memory://a/x", "memory://a/x/", "memory:///a//x", "memory://a/./x", "memory://a/y/../x"]
)
def test_every_form_of_a_url_has_one_name(form: str) -> None:
    assert absolute(form) == "memory://a/x"


def test_relative_paths_are_taken_from_the_base_or_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("x/") == absolute("./x") == absolute("file://x") == f"{tmp_path}/x"
    assert absolute(".") == str(tmp_path)
    assert absolute("x", "/data") == absolute("./x/", "/data/") == "/data/x"
    assert absolute("x", "memory://a") == "memory://a/x"
    assert absolute("/x", "/data") == "/x"
    assert absolute("memory://b", "/data") == "memory://b"
    assert absolute(Path("x")) == f"{tmp_path}/x"


def test_a_home_folder_is_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert absolute("~/x") == "/home/somebody/x"


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="empty path"):
        absolute("")


@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from(["/", "/data", "memory://", "memory://a"]))
def test_what_is_joined_below_a_folder_is_found_below_it(names: list[str], root: str) -> None:
    whole = join(root, *names)
    assert absolute(whole) == whole
    assert relative(whole, root) == "/".join(names)
    assert protocol_of(whole) == protocol_of(root)
    assert basename(whole) == names[-1]
    assert join(parent(whole), names[-1]) == whole


@pytest.mark.parametrize("root", ["/data/x", "memory://data/x"])
@pytest.mark.parametrize("part", ["..", "../y", "a/../../y", "../xx"])
def test_joining_never_leads_out_of_a_folder(root: str, part: str) -> None:
    with pytest.raises(ValueError, match="leads out of"):
        join(root, part)


def test_an_absolute_part_stays_below_the_folder() -> None:
    assert join("/data", "/etc/passwd") == "/data/etc/passwd"


def test_relative_is_none_outside_the_folder_even_where_the_name_begins_alike() -> None:
    assert relative("/data/xy", "/data/x") is None
    assert relative("/data", "/data/x") is None
    assert relative("/data/x", "/data/x") == ""
    assert relative("memory://data/x", "/data") is None


def test_the_prefix_is_the_flag_then_the_variable_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PONENTE_PREFIX", "/from/environment/")
    assert resolve_prefix("/from/flag/") == "/from/flag"
    assert resolve_prefix() == "/from/environment"
    assert resolve_prefix(None, {"PONENTE_PREFIX": "memory://x/"}) == "memory://x"
    assert resolve_prefix(None, {"PONENTE_PREFIX": ""}) == resolve_prefix(None, {}) == f"{tmp_path}/ponente-runs"


def test_braces_expand_in_their_order_whether_or_not_the_files_are_there() -> None:
    assert expand("/data/{08..11}.jsonl") == [f"/data/{number}.jsonl" for number in ("08", "09", "10", "11")]
    assert expand(["/data/{b,a}/x", "memory://m/{2..1}"]) == ["/data/b/x", "/data/a/x", "memory://m/2", "memory://m/1"]


def test_braces_that_do_not_pair_are_an_error_that_shows_the_pattern() -> None:
    with pytest.raises(ValueError, match=r"/data/\{a,b.*do not pair"):
        expand("/data/{a,b")


def test_a_glob_gives_the_files_that_are_there_sorted(folder: str) -> None:
    touch(folder, "b.jsonl", "a.jsonl", "10.jsonl", "c.txt", "sub/d.jsonl")
    assert expand(f"{folder}/*.jsonl") == [f"{folder}/{name}.jsonl" for name in ("10", "a", "b")]
    assert expand(f"{folder}/?.jsonl") == expand(f"{folder}/[ab].jsonl") == [f"{folder}/a.jsonl", f"{folder}/b.jsonl"]
    assert expand(f"{folder}/{{b,a}}.*l") == [f"{folder}/b.jsonl", f"{folder}/a.jsonl"]
    assert expand(f"{folder}/**/d.jsonl") == [f"{folder}/sub/d.jsonl"]


def test_a_glob_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(str(tmp_path), "data/a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert expand("data/*.jsonl") == expand("./data//*.jsonl") == [f"{tmp_path}/data/a.jsonl"]


def test_a_glob_never_gives_folders(folder: str) -> None:
    touch(folder, "a", "sub/b")
    assert expand(f"{folder}/*") == [f"{folder}/a"]
    assert expand(f"{folder}/**") == [f"{folder}/a", f"{folder}/sub/b"]


def test_a_glob_never_gives_dot_files_nor_what_lies_in_dot_folders(folder: str) -> None:
    touch(folder, "a.json", ".b.json", ".part-1/c.json", "x/sub/d.json", ".y/sub/e.json", "x/.z/f.json")
    assert expand(f"{folder}/*") == [f"{folder}/a.json"]
    assert expand(f"{folder}/*/sub/*.json") == [f"{folder}/x/sub/d.json"]
    assert expand(f"{folder}/**/*.json") == [f"{folder}/a.json", f"{folder}/x/sub/d.json"]


def test_a_dot_in_the_fixed_part_of_a_pattern_does_not_uncover_dot_files_below(folder: str) -> None:
    touch(folder, ".cache/data/a.json", ".cache/data/.part-1/a.json", ".cache/data/.b.json")
    assert expand(f"{folder}/.cache/data/**/*.json") == [f"{folder}/.cache/data/a.json"]
    assert expand(f"{folder}/.cache/data/*.json") == [f"{folder}/.cache/data/a.json"]


def test_a_dot_that_a_pattern_spells_is_matched(folder: str) -> None:
    touch(folder, "a/.log/1.json", "a/.other/1.json", ".b.json")
    assert expand(f"{folder}/*/.log/*.json") == [f"{folder}/a/.log/1.json"]
    assert expand(f"{folder}/.*.json") == [f"{folder}/.b.json"]


@pytest.mark.parametrize("pattern", ["*.parquet", "missing/*", "**/*.parquet"])
def test_a_glob_that_matches_nothing_is_an_error_that_shows_the_pattern(folder: str, pattern: str) -> None:
    touch(folder, "a.json", ".part-1/b.parquet")
    with pytest.raises(FileNotFoundError, match="matches .*" + pattern.replace("*", r"\*")):
        expand(f"{folder}/{pattern}")


def test_a_plain_path_passes_through_in_absolute_form(tmp_path: Path) -> None:
    assert expand(f"{tmp_path}/missing/../x.jsonl/") == [os.path.join(tmp_path, "x.jsonl")]
    assert expand(Path("/data/x")) == ["/data/x"]
