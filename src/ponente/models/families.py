"""All model families of this package, and which of them a Hugging Face model belongs to.

In: a config.json, as a dictionary. Out: the config of the family that declares its `model_type`. Families are found by
importing the modules of ponente.models, but for those that begin with `hf_`, which hold none and may want packages.
"""

import importlib
import logging
import pkgutil
from collections.abc import Mapping
from typing import Any

import ponente.models
from ponente.config.errors import RefusedError, UserError
from ponente.config.left_out import not_yet
from ponente.config.problems import ConfigError
from ponente.config.tree import Tree
from ponente.models.lm import LmConfig

_LATER = (
    *("mpt", "mistral", "mixtral", "qwen", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3", "olmo2"),
    *("olmo3", "apertus", "modernbert", "snowball", "whisper", "gpt2_hyena"),
)
_NOT_COMPUTED = ("max_position_embeddings", "initializer_range")  # with given weights, but for rows too long

logger = logging.getLogger(__name__)


def lm_families() -> dict[str, type[LmConfig]]:
    """The families by the `type` that a configuration gives, those of plugins too."""
    for module in pkgutil.iter_modules(ponente.models.__path__, "ponente.models."):
        if not module.name.startswith("ponente.models.hf_"):
            importlib.import_module(module.name)
    known: dict[str, type[LmConfig]] = LmConfig.get_known_choices()
    return known


def refuse_later_families(tree: Tree) -> None:
    """An error if a config asks for a family that is known of and not there yet."""
    path = ("model", "type")
    kind = tree.get(path)
    if kind in _LATER and kind not in lm_families():
        raise ConfigError(not_yet(tree, path, f"use one of {', '.join(sorted(lm_families()))}"))


def hf_families() -> dict[str, type[LmConfig]]:
    """The families by the `model_type` of config.json."""
    return {name: family for family in lm_families().values() for name in family.hf_model_types}


def lm_config_from_hf(config: Mapping[str, Any]) -> LmConfig:
    """The sizes that a config.json says; an error where it says what we would compute otherwise.

    Example: `lm_config_from_hf(open_hf_model("HuggingFaceTB/SmolLM2-135M").config)`
    """
    families, kind = hf_families(), config.get("model_type")
    if kind not in families:
        raise RefusedError(
            f"found a config.json of model_type {kind!r}, which is not yet known; needed one of "
            f"{', '.join(sorted(families))}. Use a model of those, or add its family to ponente.models."
        )
    if config.get("quantization_config"):
        raise RefusedError(
            f"found a quantised model of type {kind} (quantization_config in its config.json); needed weights that are "
            "plain numbers. Take the version that is not quantised."
        )
    for key in ("attention_dropout", "hidden_dropout"):
        if config.get(key):
            logger.warning(
                "config.json has %s: %s, which %s goes without here; logits are not changed by it, training is",
                key, config[key], kind,
            )  # fmt: skip
    try:
        return families[kind].from_hf(config)
    except KeyError as error:
        raise UserError(
            f"found a config.json of model_type {kind} without {error}; needed all sizes of the model. Take the "
            "config.json that belongs to the weights."
        ) from error


def hf_differences(found: Mapping[str, Any], model: LmConfig) -> list[str]:
    """What a model would compute otherwise than the one of a config.json, in its words; the same weights are supposed.

    Both are told as we would write them, so that a default and the value it stands for are equal.
    """
    then, now = lm_config_from_hf(found).to_hf(vocab_size=1), model.to_hf(vocab_size=1)
    others = [name for name in {**then, **now} if name not in _NOT_COMPUTED and then.get(name) != now.get(name)]
    told = ["model_type"] if "model_type" in others else others  # keys of another type say nothing of ours
    return [f"{name}: {then.get(name)} → {now.get(name)}" for name in told]
