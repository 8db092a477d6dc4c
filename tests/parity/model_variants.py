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
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}

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
}


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
