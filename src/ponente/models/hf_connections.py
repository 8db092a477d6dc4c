"""Models with connections over depth as Hugging Face models: keys of config.json, names of tensors, and the code.

In: a config with connections. Out: what its family adds to config.json, reads from it, and where weights lie. As
transformers has no such model, the code of one (hf_code/) goes along, and config.json names its classes. We never run
it, nor any other that lies in a folder.
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from typing import Any

import ponente.models
from ponente.models.connection_keys import ConnectedConfig
from ponente.models.hf_config import refuse_config
from ponente.models.huggingface import HfWeight, numbered
from ponente.models.lm import ACTIVATIONS

CODE = "modeling_mudd.py"
_KEYS = tuple(one.name for one in fields(ConnectedConfig) if one.name.startswith(("dynamic_", "mudd_")))
_NORMS = ("mudd_prenorm", "mudd_postnorm")


def connected_code() -> dict[str, bytes]:
    """The model in PyTorch, by name of file."""
    return {CODE: (files(ponente.models) / "hf_code" / CODE).read_bytes()}


def connections_to_hf(config: ConnectedConfig, kind: str) -> dict[str, Any]:
    """What config.json says beside the sizes of layers, for a `model_type`; classes are called after it."""
    name, module = kind.title().replace("_", ""), CODE.removesuffix(".py")
    own = {key: getattr(config, key) for key in _KEYS}
    return {
        **own,
        "mudd_prenorm": config.has_prenorm,
        "mudd_postnorm": config.has_postnorm,
        "architectures": [f"{name}ForCausalLM"],
        "model_type": kind,
        "auto_map": {
            "AutoConfig": f"{module}.{name}Config",
            "AutoModelForCausalLM": f"{module}.{name}ForCausalLM",
        },
    }


def connections_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a `ConnectedConfig`, from config.json; norms that it does not name are none, at any depth."""
    activation = config.get("dynamic_dense_act_cls", "gelu")
    unlike = {
        "dense_conn: false": config.get("dense_conn") is False,
        f"dynamic_dense_act_cls: {activation}": activation not in ACTIVATIONS,
    }
    refuse_config(config, unlike)
    found = {key: config[key] for key in _KEYS if key in config}
    found |= {key: config.get(key) or False for key in _NORMS}
    if (expand := found.get("dynamic_dense_hidden_expand")) is not None:
        found["dynamic_dense_hidden_expand"] = tuple(expand)
    return found


def connection_weights(table: Mapping[str, HfWeight], layers: int) -> dict[str, HfWeight]:
    """Where connections lie, and MLPs that are not stacked, for they differ in width.

    Args:
        table: where other weights lie, MLPs of stacked layers among them.
    """
    connection = "model.connections.{}"
    of_each = {
        "connections.{}.norm_state_D": HfWeight(f"{connection}.norm_state.weight", "D"),
        "connections.{}.w_in_DI": HfWeight(f"{connection}.w_in.weight", "I,D"),
        "connections.{}.w_out_ICM": HfWeight(f"{connection}.w_out.weight", "CM,I"),
        "connections.{}.static_CM": HfWeight(f"{connection}.static", "C,M"),
        "connections.{}.norm_after_D": HfWeight(f"{connection}.norm_after.weight", "D"),
    }
    stacked = "blocks.mlp."
    mlps = {f"mlps.{{}}.{name.removeprefix(stacked)}": one for name, one in table.items() if name.startswith(stacked)}
    return {"norm_state_D": HfWeight("model.norm_state.weight", "D"), **numbered(of_each | mlps, layers)}
