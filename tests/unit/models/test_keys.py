"""Keys of models that the comparison with transformers does not vary: each changes what it says it does."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.llama import LlamaConfig
from ponente.models.lm import Dropout, LmConfig, Tokens
from ponente.models.parameters import initialize

LLAMA = LlamaConfig(max_seq_len=8, hidden_dim=16, intermediate_dim=32, num_layers=1, num_heads=2)
GPT2 = Gpt2Config(max_seq_len=8, hidden_dim=16, num_layers=1, num_heads=2, embed_pdrop=0, resid_pdrop=0, attn_pdrop=0)
GPT_NEOX = GptNeoxConfig(max_seq_len=8, hidden_dim=16, intermediate_dim=32, num_layers=1, num_heads=2)
families = pytest.mark.parametrize("config", [LLAMA, GPT2, GPT_NEOX], ids=["llama", "gpt2", "gpt_neox"])


def hidden(config: LmConfig, dropout: Dropout | None = None) -> Any:
    model = initialize(config.parameters(20), seed=0)
    tokens = replace(Tokens.plain(jnp.arange(16).reshape(2, 8)), dropout=dropout)
    return np.asarray(jax.jit(lambda model: model.hidden(tokens))(model))


@families
def test_initializer_range_is_the_spread_of_the_first_weights(config: Any) -> None:
    wide = initialize(replace(config, initializer_range=0.5).parameters(1000), seed=0)
    assert np.std(np.asarray(wide.embed_VD)) == pytest.approx(0.5, rel=0.05)


@families
def test_layer_norm_epsilon_counts_in_norms(config: Any) -> None:
    assert np.abs(hidden(replace(config, layer_norm_epsilon=1.0)) - hidden(config)).max() > 1e-2


@families
def test_an_attention_backend_that_cannot_be_had_is_an_error_by_name(config: Any) -> None:
    np.testing.assert_array_equal(hidden(replace(config, attn_backend="xla")), hidden(config))
    with pytest.raises(RefusedError, match="cudnn"):
        hidden(replace(config, attn_backend="cudnn"))


def test_norms_without_weights_have_none() -> None:
    bare = replace(LLAMA, use_layer_norm_weight=False).parameters(20)
    assert bare.norm_D is None
    assert bare.blocks.norm_attention_D is None
    assert hidden(replace(LLAMA, use_layer_norm_weight=False)).shape == (2, 8, 16)


def test_mlp_scale_is_the_width_of_the_mlp_in_widths_of_the_model() -> None:
    shapes = [leaf.shape for leaf in jax.tree.leaves(initialize(replace(GPT2, mlp_scale=3).parameters(20), seed=0))]
    assert (1, 16, 48) in shapes
    assert (1, 16, 64) not in shapes


@pytest.mark.parametrize("key", ["embed_pdrop", "resid_pdrop", "attn_pdrop"])
def test_each_kind_of_dropout_changes_what_is_computed(key: str) -> None:
    dropout = Dropout(key=jax.random.key(0), rows_B=jnp.arange(2))
    dropped = replace(GPT2, **{key: 0.5})
    assert np.abs(hidden(dropped, dropout) - hidden(GPT2, dropout)).max() > 1e-3
    np.testing.assert_array_equal(hidden(dropped), hidden(GPT2))


@pytest.mark.parametrize(("key", "norms"), [("hybrid_norm", 2), ("input_embedding_norm", 1)])
def test_norms_that_llama_does_not_have_count_where_they_are_asked_for(key: str, norms: int) -> None:
    normed = replace(LLAMA, **{key: True})
    more = len(jax.tree.leaves(initialize(normed.parameters(20), seed=0)))
    assert more - len(jax.tree.leaves(initialize(LLAMA.parameters(20), seed=0))) == norms
    assert np.abs(hidden(normed) - hidden(LLAMA)).max() > 1e-2


@families
def test_upcast_attention_is_computed_in_float32(config: Any) -> None:
    tokens = Tokens.plain(jnp.arange(16).reshape(2, 8))

    def products_in_float32(config: Any) -> int:
        model = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), initialize(config.parameters(20), seed=0))
        program = str(jax.make_jaxpr(lambda model: model.hidden(tokens))(model))
        return len(re.findall(r":f32\S* = dot_general", program))

    upcast = products_in_float32(replace(config, upcast_attn=True))
    assert upcast == products_in_float32(config) + 1  # not the scores alone, which always are, but what they weigh
