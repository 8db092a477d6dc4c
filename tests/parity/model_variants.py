"""Small models of transformers that ours are held against: their configs, weights by a formula, and tokens.

Used by make_model_goldens.py, which needs torch, and by test_models.py, which does not.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDENS = Path(__file__).parent / "models"
VOCABULARY, LENGTH = 61, 24
PROMPT = 9  # tokens of each row that are gone on with
GENERATED = LENGTH - PROMPT

_LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_GPT_NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_HALF_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.5}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
_MUDD = {**_LLAMA, "model_type": "mudd", "rms_norm_eps": 1e-6}
_MUDD_PYTHIA = {**_GPT_NEOX, "model_type": "mudd_pythia"}
_NORMED = {"mudd_prenorm": True, "mudd_postnorm": True, "dynamic_dense_hidden_round": False}
_NARROW = {"hidden_size": 16, "intermediate_size": 192, "dynamic_mlp_dim": True}  # MLPs of 128, 256 and 256

# what transformers has no code for, and the folder brings its own: ponente/models/hf_code
_OF_OUR_CODE: dict[str, dict[str, Any]] = {
    "mudd": _MUDD,
    "mudd_normed": {**_MUDD, **_NORMED, "num_key_value_heads": 2, "head_dim": 12, "use_qk_norm": True},
    "mudd_single": {
        **_MUDD,
        "dynamic_dense_type": "l",
        "dynamic_dense_act_cls": "relu",
        "mudd_postnorm": True,
        "hybrid_norm": True,
        "input_embedding_norm": True,
        "tie_word_embeddings": True,
    },
    "mudd_queries_and_values": {
        **_MUDD,
        "dynamic_dense_type": "qv",
        "mudd_prenorm": True,
        "mudd_dilation": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": _LLAMA3_ROPE,
    },
    "mudd_sparse": {
        **_MUDD,
        "num_hidden_layers": 4,
        "dynamic_dense_type": "kvm",
        "dynamic_dense_fix_last_layer": False,
        "dynamic_dense_hidden_expand": [1, 2, 1, 3],
        "dynamic_dense_hidden_round": False,
        "mudd_static": False,
        "mudd_period": 2,
        "use_layer_norm_weight": False,
    },
    "mudd_widths": {
        **_MUDD,
        **_NARROW,
        "intermediate_size": 128,  # MLPs of 128, 128 and 256: half of the width is still one of 128
        "mudd_dynamic": False,
        "hidden_act": "gelu",
        "rope_parameters": _YARN,
    },
    "mudd_pythia": _MUDD_PYTHIA,
    "mudd_pythia_normed": {
        **_MUDD_PYTHIA,
        **_NORMED,
        **_NARROW,
        "use_parallel_residual": False,
        "rope_parameters": _HALF_LINEAR,
    },
    "mudd_pythia_single": {
        **_MUDD_PYTHIA,
        "dynamic_dense_type": "l",
        "dynamic_dense_act_cls": "gelu_new",
        "mudd_postnorm": True,
        "mudd_static": False,
        "dynamic_dense_hidden_round": False,
        "tie_word_embeddings": True,
    },
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama_grouped": {**_LLAMA, "num_key_value_heads": 2},
    "llama_tied": {**_LLAMA, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama_head_dim": {**_LLAMA, "head_dim": 12, "num_key_value_heads": 2},
    "llama_biases": {**_LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama_rope_llama3": {**_LLAMA, "rope_parameters": _LLAMA3_ROPE},
    "llama_rope_linear": {**_LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "llama_rope_yarn": {**_LLAMA, "rope_parameters": _YARN},
    "llama_gelu": {**_LLAMA, "hidden_act": "gelu"},
    "qwen3_qk_norm": {**_LLAMA, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8},
    "gpt2": _GPT2,
    "gpt2_inverse_layer": {**_GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 64},
    "gpt2_untied": {**_GPT2, "tie_word_embeddings": False, "activation_function": "relu"},
    "gpt_neox": _GPT_NEOX,
    "gpt_neox_sequential": {**_GPT_NEOX, "use_parallel_residual": False, "rope_parameters": _HALF_LINEAR},
    "gpt_neox_tied": {**_GPT_NEOX, "tie_word_embeddings": True, "rotary_pct": 1.0, "rotary_emb_base": 500.0},
    **_OF_OUR_CODE,
}
OF_OUR_CODE = tuple(_OF_OUR_CODE)
OF_TRANSFORMERS = tuple(name for name in VARIANTS if name not in OF_OUR_CODE)
WITH_GRADIENTS = (*OF_TRANSFORMERS, "mudd_sparse")  # their goldens have some


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A tensor by its name alone: numbers that look random, around 1 for the weights of norms."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=3).digest(), "little")
    numbers = np.arange(int(np.prod(shape)), dtype=np.float64) + seed
    spread = np.modf(np.abs(np.sin(numbers * 12.9898) * 43758.5453))[0] - 0.5
    is_norm = len(shape) == 1 and name.endswith("weight")
    return ((1.0 if is_norm else 0.0) + 0.3 * spread).reshape(shape).astype(np.float32)


def tokens() -> NDArray[np.int64]:
    """Two rows of token ids."""
    return (np.arange(2 * LENGTH).reshape(2, LENGTH) * 17 + 5) % VOCABULARY
