"""What layers keep for the backward pass, as estimates of memory have it, against what JAX keeps."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from ponente.models.gpt2 import Gpt2Config
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig, Tokens
from ponente.models.parameters import is_parameter
from ponente.models.stack import kept_numbers
from ponente.ops.attention import Mask

LAYERS, ROWS, LENGTH = 3, 2, 16
MODELS = [
    LlamaConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_layers=LAYERS, num_heads=4, num_kv_heads=2),
    Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=LAYERS, num_heads=4, resid_pdrop=0.0, attn_pdrop=0.0),
]


@pytest.mark.parametrize("model", MODELS, ids=["llama", "gpt2"])
@pytest.mark.parametrize("policy", [True, "dots", "dots_and_attention"])
def test_what_is_kept_of_each_token_is_what_jax_keeps(model: LmConfig, policy: bool | str) -> None:
    model = replace(model, gradient_checkpointing=policy)
    shapes = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, jnp.bfloat16), model.parameters(64), is_leaf=is_parameter
    )
    places = jnp.tile(jnp.arange(LENGTH), (ROWS, 1))
    tokens = Tokens(ids_BS=jnp.zeros((ROWS, LENGTH), jnp.int32), positions_BS=places, mask=Mask())
    kept = jax.eval_shape(lambda model: jax.vjp(lambda one: one.hidden(tokens), model)[1], shapes)
    of_layers = [leaf for leaf in jax.tree.leaves(kept) if leaf.shape[:3] == (LAYERS, ROWS, LENGTH)]
    found = sum(math.prod(leaf.shape) for leaf in of_layers) / (LAYERS * ROWS * LENGTH)
    assert found == kept_numbers(model.activations(), policy)


@pytest.mark.parametrize("model", MODELS, ids=["llama", "gpt2"])
def test_each_policy_keeps_more_than_the_one_before_and_devices_share_it(model: LmConfig) -> None:
    made = model.activations()
    kept = [kept_numbers(made, policy) for policy in (True, "attention", "dots", "dots_and_attention", False)]
    assert kept == sorted(set(kept))
    assert kept_numbers(made, True, parts=2) == kept_numbers(made, True)
    assert kept_numbers(made, False) / 2 < kept_numbers(made, False, parts=2) < kept_numbers(made, False)
