"""Sizes of models by name, as `model: {type: mudd, preset: MUDDLlama2Medium}` asks for them.

In: a raw configuration. Out: the same with the preset's keys in place of its name; those that the user gives win.
"""

from typing import Any

from ponente.config.problems import ConfigError, Problem, nearest, shown
from ponente.config.tree import Tree

_PATH = ("model", "preset")
_TYPE = ("model", "type")
_MUDD = "mudd"  # the type that stands for all of them

_ALL: dict[str, Any] = {"max_seq_len": 2048, "initializer_range": 0.006}
_MEDIUM = {**_ALL, "type": _MUDD, "num_layers": 24, "hidden_dim": 1024, "intermediate_dim": 2816, "num_heads": 16}
_PYTHIA = {**_ALL, "type": "mudd_pythia"}
_NORMS = {"mudd_prenorm": True, "mudd_postnorm": True}

PRESETS: dict[str, dict[str, Any]] = {
    "MUDDLlama2Medium": {**_MEDIUM, **_NORMS, "dynamic_mlp_dim": True},
    "Llama2Medium": {**_MEDIUM, "dense_conn": False},
    "MUDDPythia1.4B": {
        **_PYTHIA, "num_layers": 24, "hidden_dim": 2048, "intermediate_dim": 8192, "num_heads": 16,
    },
    "MUDDPythia2.8B": {
        **_PYTHIA, "num_layers": 32, "hidden_dim": 2560, "intermediate_dim": 10240, "num_heads": 32,
    },
    "MUDDFormer2.8B": {
        **_ALL, **_NORMS, "type": _MUDD, "num_layers": 32, "hidden_dim": 2560, "intermediate_dim": 6912,
        "num_heads": 32, "dynamic_mlp_dim": True,
    },
}  # fmt: skip


def expand_preset(tree: Tree) -> None:
    """Puts the keys of the preset that a configuration names, if it does, in its place."""
    if not tree.has(_PATH):
        return
    name, kind = tree.get(_PATH), tree.get(_TYPE)
    if name is not None and not (isinstance(name, str) and name in PRESETS):
        close = nearest(name, PRESETS) if isinstance(name, str) else None
        raise ConfigError(
            Problem(
                found=f"{tree.place(_PATH)} = {shown(name)}",
                needed=f"one of {', '.join(PRESETS)}",
                remedy=f"write {close} if that is what you mean"
                if close
                else "choose one, or give the sizes themselves",
            )
        )
    keys = {} if name is None else PRESETS[name]
    if keys and kind not in (None, _MUDD, keys["type"]):
        raise ConfigError(
            Problem(
                found=f"{tree.place(_TYPE)} = {shown(kind)} with {tree.place(_PATH)} = {shown(name)}",
                needed=f"type: {_MUDD}, to which this preset belongs",
                remedy="change one of them",
            )
        )
    is_baseline = tree.get(("model", "dense_conn")) is False
    for key, value in keys.items():
        if key == "dynamic_mlp_dim" and is_baseline:  # which goes with connections
            continue
        if key == "type" or not tree.has(("model", key)):
            tree.put(("model", key), value, like=_PATH)
    tree.drop(_PATH)
