"""What layers keep for the backward pass, as estimates of memory have it, against what JAX keeps."""

import math
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
from ponente.models.lm import LmConfig, Tokens
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import is_parameter
from ponente.models.stack import check_checkpointing, kept_numbers
from ponente.ops.attention import Mask

LAYERS, ROWS, LENGTH = 3, 2, 16
MODELS = [
    LlamaConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_layers=LAYERS, num_heads=4, num_kv_heads=2),
    Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=LAYERS, num_heads=4, resid_pdrop=0.0, attn_pdrop=0.0),
    GptNeoxConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_layers=LAYERS, num_heads=4),
]
NORMS = {"mudd_prenorm": True, "mudd_postnorm": True}
CONNECTED = {
    "mudd": MuddConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_heads=4),
    "mudd with norms": MuddConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_heads=4, **NORMS),
    "mudd of two ways": MuddConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_heads=4, dynamic_dense_type="km"
    ),
    "mudd_pythia": MuddPythiaConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=96, num_heads=4),
}
families = pytest.mark.parametrize("model", MODELS, ids=["llama", "gpt2", "gpt_neox"])
connected_too = pytest.mark.parametrize("model", [*MODELS, *CONNECTED.values()])
SEQUENTIAL = replace(MODELS[2], use_parallel_residual=False)  # type: ignore[call-arg]
PLACES = np.tile(np.arange(LENGTH), (ROWS, 1))
TOKENS = Tokens(ids_BS=np.zeros((ROWS, LENGTH), np.int32), positions_BS=PLACES, mask=Mask())  # type: ignore[arg-type]


def shapes_of(model: LmConfig) -> Any:
    shape = lambda one: jax.ShapeDtypeStruct(one.shape, jnp.bfloat16)  # noqa: E731
    return jax.tree.map(shape, model.parameters(64), is_leaf=is_parameter)


@pytest.mark.parametrize("model", [*MODELS, SEQUENTIAL], ids=["llama", "gpt2", "gpt_neox", "sequential"])
@pytest.mark.parametrize("policy", [True, "dots", "dots_and_attention"])
def test_what_is_kept_of_each_token_is_what_jax_keeps(model: LmConfig, policy: bool | str) -> None:
    model = replace(model, gradient_checkpointing=policy)
    shapes = shapes_of(model)
    kept = jax.eval_shape(lambda model: jax.vjp(lambda one: one.hidden(TOKENS), model)[1], shapes)
    of_layers = [leaf for leaf in jax.tree.leaves(kept) if leaf.shape[:3] == (LAYERS, ROWS, LENGTH)]
    found = sum(math.prod(leaf.shape) for leaf in of_layers) / (LAYERS * ROWS * LENGTH)
    assert found == kept_numbers(model.activations(), policy)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("mudd", "dots"), ("mudd with norms", True), ("mudd of two ways", True), ("mudd_pythia", "dots_and_attention")],
)
def test_what_one_more_layer_with_connections_keeps_is_what_jax_keeps(
    name: str, policy: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponente.ops.mixing.has_triton", lambda: True)  # as GPUs keep it; nothing is run

    def kept(layers: int) -> tuple[float, int]:
        deep: Any = replace(CONNECTED[name], num_layers=layers, gradient_checkpointing=policy)
        pulled = jax.eval_shape(lambda one: jax.vjp(lambda one: one.hidden(TOKENS), one)[1], shapes_of(deep))
        of_tokens = [leaf for leaf in jax.tree.leaves(pulled) if leaf.shape[:2] == (ROWS, LENGTH)]
        found = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in of_tokens) / (2 * ROWS * LENGTH)
        return found, layers * kept_numbers(deep.activations(), policy)

    (before, expected_before), (after, expected) = kept(2), kept(3)
    assert after - before == pytest.approx(expected - expected_before, abs=8)  # the last mixture has another state


def test_without_connections_a_layer_keeps_what_it_keeps_in_a_family_without() -> None:
    llama, neox = MODELS[0].activations(), MODELS[2].activations()
    sizes: dict[str, Any] = {"num_layers": LAYERS, "dense_conn": False}
    assert replace(CONNECTED["mudd"], **sizes, num_kv_heads=2).activations() == llama
    assert replace(CONNECTED["mudd_pythia"], **sizes).activations() == neox
    assert CONNECTED["mudd_pythia"].activations().shared == 32 > neox.shared == 0


@connected_too
def test_each_policy_keeps_more_than_the_one_before_and_devices_share_it(model: LmConfig) -> None:
    made = model.activations()
    kept = [
        kept_numbers(made, policy) for policy in ("offload", True, "attention", "dots", "dots_and_attention", False)
    ]
    assert kept == sorted(set(kept))
    assert kept_numbers(made, True, parts=2) == kept_numbers(made, True)
    assert kept_numbers(made, False) / 2 < kept_numbers(made, False, parts=2) < kept_numbers(made, False)


@families
def test_inputs_of_layers_go_to_the_host_and_come_back(model: LmConfig) -> None:
    def moves(policy: bool | str) -> list[str]:
        given = replace(model, gradient_checkpointing=policy)
        gradient = jax.jit(jax.grad(lambda one: one.hidden(TOKENS).astype(jnp.float32).sum()))
        text = gradient.trace(shapes_of(given)).lower(lowering_platforms=("cuda",)).as_text()  # CPUs have one memory
        return re.findall(r'_xla_buffer_placement = "(\w+)"', text)

    assert moves(True) == []
    assert sorted(moves("offload")) == ["device", "pinned_host"]


def test_in_the_host_s_memory_only_scanned_layers_are_kept() -> None:
    with pytest.raises(RefusedError, match=r"offload with model.scan_layers: false; needed scanned layers"):
        check_checkpointing("offload", is_scanned=False)
    check_checkpointing("offload", is_scanned=True)
    check_checkpointing(False, is_scanned=False)
