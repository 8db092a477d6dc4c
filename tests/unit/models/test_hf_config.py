"""config.json of Hugging Face models: which family it is of, and what of it is refused. Families are discovered."""

import logging
from typing import Any

import pytest
from model_variants import VARIANTS

from ponente.config.errors import RefusedError, UserError
from ponente.models.families import hf_families, lm_config_from_hf, lm_families
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.llama import LlamaConfig

LLAMA, QWEN3, GPT2 = VARIANTS["llama"], VARIANTS["qwen3_qk_norm"], VARIANTS["gpt2"]
GPT_NEOX = VARIANTS["gpt_neox"]
MUDD, MUDD_PYTHIA = VARIANTS["mudd"], VARIANTS["mudd_pythia"]


def test_every_model_type_is_of_one_family_and_held_against_transformers() -> None:
    declared = [name for family in lm_families().values() for name in family.hf_model_types]
    assert len(declared) == len(set(declared)) == len(hf_families())
    assert set(declared) == {config["model_type"] for config in VARIANTS.values()}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_family_writes_a_model_type_that_it_reads(name: str) -> None:
    config = lm_config_from_hf(VARIANTS[name])
    stored = config.to_hf(61)
    assert stored["model_type"] == VARIANTS[name]["model_type"]
    assert lm_config_from_hf(stored).to_hf(61) == stored


def test_families_are_found_by_model_type() -> None:
    assert isinstance(lm_config_from_hf(LLAMA), LlamaConfig)
    assert isinstance(lm_config_from_hf(GPT2), Gpt2Config)
    assert isinstance(lm_config_from_hf(GPT_NEOX), GptNeoxConfig)
    qwen3 = lm_config_from_hf(QWEN3)
    assert isinstance(qwen3, LlamaConfig) and qwen3.use_qk_norm


@pytest.mark.parametrize("kind", ["mamba", None])
def test_an_unknown_model_type_is_not_yet_known(kind: str | None) -> None:
    with pytest.raises(RefusedError, match=f"model_type {kind!r}, which is not yet known; needed one of .*gpt2.*llama"):
        lm_config_from_hf({**LLAMA, "model_type": kind})


@pytest.mark.parametrize(
    ("config", "changes", "saying"),
    [
        (LLAMA, {"mlp_bias": True}, "mlp_bias: true but no biases in attention"),
        (LLAMA, {"attention_bias": True}, "attention_bias: true but no biases in the MLP"),
        (QWEN3, {"attention_bias": True, "mlp_bias": True}, "attention_bias: true but no biases in the MLP"),
        (LLAMA, {"hidden_act": "quick_gelu"}, "hidden_act: quick_gelu"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        (LLAMA, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0}}, "mscale: 0.7"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "truncate: False"),
        (LLAMA, {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, r"mrope_section: \[1, 2\]"),
        (QWEN3, {"use_sliding_window": True, "sliding_window": 16}, "use_sliding_window: true"),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: sliding_attention"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights: false"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention: true"),
        (GPT2, {"activation_function": "tanh"}, "activation_function: tanh"),
        (GPT_NEOX, {"attention_bias": False}, "attention_bias: false"),
        (GPT_NEOX, {"hidden_act": "quick_gelu"}, "hidden_act: quick_gelu"),
        (GPT_NEOX, {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, r"mrope_section: \[1, 2\]"),
        (MUDD, {"mlp_bias": True}, "mlp_bias: true but no biases in attention"),
        (MUDD, {"dense_conn": False}, "dense_conn: false"),
        (MUDD, {"dynamic_dense_act_cls": "tanh"}, "dynamic_dense_act_cls: tanh"),
        (MUDD_PYTHIA, {"attention_bias": False}, "attention_bias: false"),
    ],
)
def test_what_would_give_other_logits_is_refused(config: Any, changes: Any, saying: str) -> None:
    with pytest.raises(RefusedError, match=f"with {saying}.*, which this version does not compute.*Use another model"):
        lm_config_from_hf({**config, **changes})


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (LLAMA, {"mlp_bias": False, "attention_bias": False, "pretraining_tp": 2, "partial_rotary_factor": 1.0}),
        (LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": None}}),
        (QWEN3, {"use_sliding_window": False, "sliding_window": 4096, "layer_types": ["full_attention"] * 3}),
        (GPT2, {"scale_attn_weights": True, "add_cross_attention": False, "reorder_and_upcast_attn": True}),
        (GPT_NEOX, {"attention_bias": True, "rotary_pct": 0.25, "rotary_emb_base": 10000, "rope_scaling": None}),
        (GPT_NEOX, {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}, "rotary_pct": 1.0}),
        ({**GPT_NEOX, "hidden_act": "gelu_new"}, {"hidden_act": "gelu_fast"}),
    ],
)
def test_what_changes_no_logit_changes_nothing(config: Any, changes: Any) -> None:
    assert lm_config_from_hf({**config, **changes}) == lm_config_from_hf(config)


def test_dropout_that_we_go_without_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert lm_config_from_hf({**LLAMA, "attention_dropout": 0.1}) == lm_config_from_hf(LLAMA)
        assert lm_config_from_hf({**GPT_NEOX, "hidden_dropout": 0.2}) == lm_config_from_hf(GPT_NEOX)
    assert "attention_dropout: 0.1, which llama goes without here" in caplog.text
    assert "hidden_dropout: 0.2, which gpt_neox goes without here" in caplog.text


def test_a_quantised_model_is_refused() -> None:
    with pytest.raises(RefusedError, match="found a quantised model of type llama"):
        lm_config_from_hf({**LLAMA, "quantization_config": {"quant_method": "fp8"}})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(UserError, match="model_type llama without 'hidden_size'; needed all sizes"):
        lm_config_from_hf({key: value for key, value in LLAMA.items() if key != "hidden_size"})


def test_biases_beside_query_key_norms_are_not_exported() -> None:
    with pytest.raises(RefusedError, match="use_qk_norm and use_bias, of which transformers has only one"):
        LlamaConfig(use_qk_norm=True, use_bias=True).to_hf(61)
