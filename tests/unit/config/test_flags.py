"""Flags to raw configuration: names, values, and what is said of those that are neither."""

from typing import Any

import pytest

from ponente.config.flags import parse_flags
from ponente.config.problems import ConfigError
from ponente.config.tree import Tree


def parsed(*arguments: str, known: dict[str, Any] | None = None) -> dict[str, Any]:
    whole = Tree()
    for tree in parse_flags(arguments, known):
        whole.overlay(tree)
    return whole.raw


def error_of(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_flags(arguments)
    assert "found " in str(caught.value) and "needed " in str(caught.value)
    return str(caught.value)


def test_a_flag_names_a_path_and_its_value_follows_or_is_joined() -> None:
    assert parsed("--a.b.c", "5", "--a.b.d=x=y", "--e") == {"a": {"b": {"c": 5, "d": "x=y"}}, "e": True}


def test_a_bare_flag_is_true_also_before_another() -> None:
    assert parsed("--x", "--y", "1") == {"x": True, "y": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1", -1),
        ("1E-4", 1e-4),
        (".5e3", 500.0),
        ("false", False),
        ("null", None),
        ("none", None),
        ("None", None),
        ("", ""),
        ("15m", "15m"),
        ("gs://b/train.{1..32}.jsonl.gz", "gs://b/train.{1..32}.jsonl.gz"),
        ('["a", "b", 1]', ["a", "b", 1]),
        ("{a: {b: 1e3}}", {"a": {"b": 1000.0}}),
        ('"5"', "5"),
        ("'true'", "true"),
        ("Hello: world # really", "Hello: world # really"),
        ("'tis so", "'tis so"),
        ("a: [b] a", "a: [b] a"),
        ("p=f32,c=bfloat16", "p=f32,c=bfloat16"),
        ("a\nb", "a\nb"),
    ],
)
def test_values_are_read_as_yaml_reads_them_and_other_text_stays_as_typed(text: str, value: object) -> None:
    for arguments in (["--x", text], [f"--x={text}"]):
        read = parsed(*arguments)["x"]
        assert read == value and type(read) is type(value)


def test_the_last_of_several_wins() -> None:
    assert parsed("--a", "1", "--a", "2") == {"a": 2}
    assert parsed("--a.b", "1", "--a", "{c: 2}") == {"a": {"c": 2}}
    assert parsed("--a", "{b: 1, c: 1}", "--a.b", "2") == {"a": {"b": 2, "c": 1}}


def test_a_section_given_whole_takes_the_place_of_what_was_there_and_a_key_of_it_does_not() -> None:
    file = Tree.of({"data": {"train_weights": {"a": 1, "b": 1}, "tokenizer": "gpt2"}})
    for tree in parse_flags(["--data.train_weights", "{a: 2}"]):
        file.overlay(tree)
    assert file.raw == {"data": {"train_weights": {"a": 2}, "tokenizer": "gpt2"}}
    for tree in parse_flags(["--data.train_weights.c", "3"]):
        file.overlay(tree)
    assert file.raw["data"]["train_weights"] == {"a": 2, "c": 3}


def test_dashes_in_names_are_underscores_except_in_names_that_users_gave() -> None:
    assert parsed("--trainer.num-train-steps", "5") == {"trainer": {"num_train_steps": 5}}
    assert parsed("--data.components.my-web.cache-dir", "x") == {"data": {"components": {"my-web": {"cache_dir": "x"}}}}
    assert parsed("--data.train-weights.my-web", ".5") == {"data": {"train_weights": {"my-web": 0.5}}}
    assert parsed("--jax.a-b", "1", known={"jax": {"a-b": 0}}) == {"jax": {"a-b": 1}}
    assert parsed("--x=a-b") == {"x": "a-b"}
    assert parsed("--hf-upload", "--t.a-b", "1", known={"t": {"c": 0}}) == {"hf_upload": True, "t": {"a_b": 1}}


def test_a_value_knows_its_flag_and_how_it_was_typed() -> None:
    [tree] = parse_flags(["--trainer.num-train-steps", "1_000"])
    place = tree.place(("trainer", "num_train_steps"))
    assert (str(place), place.text) == ("trainer.num_train_steps (flag --trainer.num-train-steps)", "1_000")
    [tree] = parse_flags(["--a", "[x, {b: 1.10}]"])
    assert tree.place(("a", "1", "b")).text == "1.10"
    assert str(tree.place(("a", "1", "b"))) == "a.1.b (flag --a)"


def test_a_value_without_a_flag_is_told_with_what_to_do() -> None:
    text = error_of("--data.train_urls", "a.jsonl", "b.jsonl")
    assert "'b.jsonl' after 'a.jsonl'" in text and """--name '["a", "b"]'""" in text
    assert "'x', which belongs to no flag" in error_of("x", "--a", "1")
    assert "'-x'" in error_of("-x")


@pytest.mark.parametrize("argument", ["--", "--=5", "--a..b", "--.a", "--a.", "--a b"])
def test_a_flag_without_a_name_is_refused(argument: str) -> None:
    assert repr(argument) in error_of(argument) and "--section.name" in error_of(argument)
    assert ("without a name" in error_of(argument)) == (argument in ("--", "--=5"))


@pytest.mark.parametrize("value", ["[1, 2", "{1..3}.jsonl", "{a: 1, a: 2}", "[!!python/name:os.system x]", "9" * 5000])
def test_a_broken_value_is_refused_and_not_taken_for_text(value: str) -> None:
    text = error_of("--x", value)
    assert "after flag --x" in text and "Quote it twice" in text
