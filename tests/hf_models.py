"""Tiny Hugging Face models as folders, written by hand: no library and none of our writers is used."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from model_variants import VARIANTS, VOCABULARY, weight
from numpy.typing import NDArray

from ponente.models.families import lm_config_from_hf
from ponente.models.huggingface import hf_tensors

BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = {np.dtype(np.float32): "F32", BF16: "BF16", np.dtype(np.float16): "F16", np.dtype(np.bool_): "BOOL"}
Tensors = dict[str, NDArray[Any]]


def safetensors_bytes(tensors: Tensors) -> bytes:
    """A file of the format."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensors_of(config: dict[str, Any], dtype: Any = np.float32) -> Tensors:
    """The tensors of a model, by a formula of their names."""
    ours = lm_config_from_hf(config)
    wanted = hf_tensors(ours.parameters(config["vocab_size"]), ours.hf_weights())
    return {one.name: weight(one.name, one.shape).astype(dtype) for one in wanted}


def write_model(
    folder: Path, config: dict[str, Any] | str, tensors: Tensors | None = None, dtype: Any = np.float32
) -> Path:
    """A model's folder; the config by name is one of `model_variants`."""
    stored = {**VARIANTS[config], "vocab_size": VOCABULARY} if isinstance(config, str) else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(stored))
    (folder / "model.safetensors").write_bytes(
        safetensors_bytes(tensors_of(stored, dtype) if tensors is None else tensors)
    )
    return folder
