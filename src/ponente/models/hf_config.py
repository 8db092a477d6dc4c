"""What a config.json may say that a family of ours would not heed: refused, so that no logits are silently wrong.

In: the config.json of a Hugging Face model, as a dictionary. Out: nothing, or an error that names the keys. Each family
calls this in its `from_hf` with what it does not have.
"""

from collections.abc import Mapping
from typing import Any

from ponente.config.errors import RefusedError

# keys that rotary_from_hf reads; any other may change the frequencies
_ROTARY_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "original_max_position_embeddings", "attention_factor",
}  # fmt: skip
_ROTARY_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (None, 1),
    "truncate": (None, True),
    "mscale": (None, 0),
    "mscale_all_dim": (None, 0),
}


def refuse_config(config: Mapping[str, Any], unlike: Mapping[str, bool]) -> None:
    """An error if any of `unlike` is so: what the config says, and whether it says it.

    Example: `refuse_config(config, {"scale_attn_weights: false": config.get("scale_attn_weights") is False})`
    """
    found = [saying for saying, is_so in unlike.items() if is_so]
    if found:
        raise RefusedError(
            f"found a config.json of model_type {config.get('model_type')} with {', '.join(found)}, which this version "
            "does not compute, so that its logits would be wrong; needed a model without. Use another model."
        )


def beyond_rotary(config: Mapping[str, Any]) -> dict[str, bool]:
    """Rotary positions that `rotary_from_hf` does not read, for `refuse_config`."""
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    all_keys = {"partial_rotary_factor": config.get("partial_rotary_factor"), **stored}
    return {
        f"{key}: {value} of its rotary positions": value not in _ROTARY_WITHOUT_EFFECT.get(key, (None,))
        for key, value in all_keys.items()
        if key not in _ROTARY_KEYS
    }


def beyond_full_attention(config: Mapping[str, Any]) -> dict[str, bool]:
    """Layers that do not see the whole row, for `refuse_config`."""
    kinds = {str(kind) for kind in config.get("layer_types") or ()} - {"full_attention"}
    return {
        "use_sliding_window: true": bool(config.get("use_sliding_window")),
        f"layer_types: {', '.join(sorted(kinds))}": bool(kinds),
    }
