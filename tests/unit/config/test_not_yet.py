"""Keys that will work later: refused by name unless they ask for nothing."""

from typing import Any

import pytest

from ponente.config.left_out import NOT_YET, refuse_not_yet
from ponente.config.problems import ConfigError
from ponente.config.rewrite import rewrite

REFUSED: dict[str, Any] = {
    "adapter": {"type": "lora", "r": 8},
    "peft_save_path": "peft/",
    "peft_hf_upload": "org/name",
    "merged_hf_save_path": "merged/",
    "merged_hf_upload": True,
    "eval_harness": {"task_spec": ["hellaswag"]},
    "eval_harness_steps": 100,
    "labeled_eval": {"x": 1},
    "trainer.quantization.int8": True,
    "trainer.quantization.targets": ["mlp"],
}


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    whole: dict[str, Any] = value
    return whole


def checked(raw: dict[str, Any]) -> dict[str, Any]:
    tree = rewrite(raw).tree
    refuse_not_yet(tree)
    left: dict[str, Any] = tree.raw
    return left


def test_every_key_of_later_is_listed_here() -> None:
    assert set(NOT_YET) == set(REFUSED)


@pytest.mark.parametrize("path", REFUSED)
def test_a_key_of_later_is_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match=rf"not yet: {path}"):
        checked(nested(path, REFUSED[path]))


@pytest.mark.parametrize(("path", "value"), [(path, one) for path, defaults in NOT_YET.items() for one in defaults])
def test_at_its_default_it_is_dropped(path: str, value: Any) -> None:
    parent = nested(path, value)
    for key in path.split(".")[:-1]:
        parent = parent[key]
    assert path.split(".")[-1] in parent
    left = checked(nested(path, value))
    for key in path.split(".")[:-1]:
        left = left.get(key, {})
    assert path.split(".")[-1] not in left


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_families_that_are_there_pass(name: str) -> None:
    assert checked({"model": {"type": name}}) == {"model": {"type": name}}


def test_several_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)not yet: adapter.*not yet: trainer.quantization.int8"):
        checked({"adapter": {"type": "lora"}, "trainer": {"quantization": {"int8": True}}})
