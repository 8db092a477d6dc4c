"""What holds for every model family; a new one is found by its registration and needs a tiny config here."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.llama import LlamaConfig
from ponente.models.lm import Dropout, KeyValues, LmConfig, Tokens, logits
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import LAYERS, Parameter, abstract, count, initialize, is_parameter
from ponente.ops.attention import Mask
from ponente.ops.loss import cross_entropy_sums
from ponente.ops.rotary import Llama3Rotary

VOCABULARY, LENGTH = 50, 16
TINY: dict[str, LmConfig] = {
    "llama": LlamaConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=3, num_heads=4, num_kv_heads=2,
        use_qk_norm=True, hybrid_norm=True, input_embedding_norm=True, use_bias=True, upcast_attn=True,
        rope=Llama3Rotary(original_max_position_embeddings=8),
    ),
    "gpt2": Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=3, num_heads=4),
    "gpt_neox": GptNeoxConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=3, num_heads=4, rotary_pct=0.5
    ),
    "mudd": MuddConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2,
        mudd_prenorm=True, mudd_postnorm=True,
    ),
    "mudd_pythia": MuddPythiaConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, rotary_pct=0.5
    ),
}  # fmt: skip
families = pytest.mark.parametrize("config", TINY.values(), ids=list(TINY))
UNROLLED = {"mudd", "mudd_pythia"}  # families each of whose layers has another number of states
POLICIES: list[bool | str] = [False, "full", "dots", "attention", "dots_and_attention", "save_all", "offload"]
FEW_POLICIES: dict[str, list[bool | str]] = {  # Llama has all
    "gpt2": [False, "dots_and_attention", "offload"],
    "gpt_neox": ["dots_and_attention"],
    "mudd": ["dots_and_attention"],
    "mudd_pythia": [],
}
kept_policies = pytest.mark.parametrize(
    ("family", "policy"),
    [(family, policy) for family in TINY for policy in FEW_POLICIES.get(family, POLICIES)],
)


def made(config: LmConfig, seed: int = 0) -> Any:
    return initialize(config.parameters(VOCABULARY), seed)


def stirred(config: LmConfig, seed: int = 0) -> Any:
    """A model none of whose parts still does nothing, as biases and connections do at first."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda one: one + np.float32(random.normal(0, 0.1, one.shape)), made(config, seed))


def ids(rows: int = 2, seed: int = 1) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, LENGTH), 0, VOCABULARY)


def hidden(model: Any, tokens: Tokens) -> jax.Array:
    return jax.jit(lambda model, tokens: model.hidden(tokens))(model, tokens)


def test_every_family_is_held_to_this() -> None:
    assert set(LmConfig.get_known_choices()) == set(TINY)


@families
def test_shapes_axes_and_numbers_of_parameters_agree(config: LmConfig) -> None:
    parameters, model = config.parameters(VOCABULARY), made(config)
    specs = jax.tree.leaves(parameters, is_leaf=is_parameter)
    assert all(isinstance(one, Parameter) for one in specs)
    assert [one.shape for one in specs] == [array.shape for array in jax.tree.leaves(model)]
    assert [one.shape for one in specs] == [array.shape for array in jax.tree.leaves(abstract(parameters))]
    assert count(parameters) == sum(array.size for array in jax.tree.leaves(model))
    assert {LAYERS, "embed", "vocab", "heads", "mlp"} <= {axis for one in specs for axis in one.axes}
    assert hidden(model, Tokens.plain(ids())).shape == (2, LENGTH, 32)
    assert logits(model, hidden(model, Tokens.plain(ids()))).dtype == jnp.float32


@families
def test_no_token_sees_a_later_one(config: LmConfig) -> None:
    model, tokens = made(config), ids()
    changed = tokens.at[:, 9].add(1) % VOCABULARY
    before, after = (hidden(model, Tokens.plain(one)) for one in (tokens, changed))
    assert np.array_equal(before[:, :9], after[:, :9])
    assert not np.allclose(before[:, 9:], after[:, 9:])


@families
def test_documents_in_one_row_are_as_if_they_stood_alone(config: LmConfig) -> None:
    model, tokens = stirred(config), ids(1)
    segments = jnp.array([[0] * 8 + [1] * 8])
    positions = jnp.concatenate([jnp.arange(8), jnp.arange(8)])[None]
    together = Tokens(ids_BS=tokens, positions_BS=positions, mask=Mask(segment_ids_BS=segments))
    alone = [hidden(model, Tokens.plain(part)) for part in (tokens[:, :8], tokens[:, 8:])]
    np.testing.assert_allclose(hidden(model, together), jnp.concatenate(alone, axis=1), atol=2e-6)


@families
def test_the_first_loss_is_that_of_guessing(config: LmConfig) -> None:
    model, tokens = made(config), ids(8)
    flat = hidden(model, Tokens.plain(tokens)).reshape(-1, 32)
    sums = cross_entropy_sums(flat, model.head_DV(), ids(8, seed=2).reshape(-1), jnp.ones(flat.shape[0]))
    assert float(sums.loss / sums.weight) == pytest.approx(np.log(VOCABULARY), abs=0.05)


@families
def test_decoding_with_a_cache_is_the_full_forward(config: LmConfig) -> None:
    model, tokens = stirred(config), ids()
    whole = hidden(model, Tokens.plain(tokens))
    past = KeyValues.empty(config, 2, LENGTH, jnp.float32)
    extend = jax.jit(lambda model, tokens, past: model.extend(tokens, past))
    found = []
    for start, stop in ((0, 7), (7, 8), (8, 9), (9, LENGTH)):
        positions = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
        step, past = extend(model, Tokens(ids_BS=tokens[:, start:stop], positions_BS=positions, mask=Mask()), past)
        found.append(step)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole, atol=2e-5)
    assert past.length_B.tolist() == [LENGTH, LENGTH]


@pytest.mark.parametrize("family", sorted(set(TINY) - UNROLLED))
def test_scanned_and_unrolled_have_the_same_parameters_and_values(family: str) -> None:
    scanned, unrolled = (made(replace(TINY[family], scan_layers=is_scanned)) for is_scanned in (True, False))
    for left, right in zip(jax.tree.leaves(scanned), jax.tree.leaves(unrolled), strict=True):
        assert np.array_equal(left, right)
    np.testing.assert_allclose(hidden(scanned, Tokens.plain(ids())), hidden(unrolled, Tokens.plain(ids())), atol=3e-6)


@pytest.mark.parametrize("family", sorted(UNROLLED))
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"scan_layers": True}, "found scan_layers: true .* another number of states; .* Set scan_layers: false"),
        ({"gradient_checkpointing": "offload"}, "found gradient_checkpointing: offload .* layers in a row"),
    ],
)
def test_layers_that_differ_cannot_be_scanned(family: str, key: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        replace(TINY[family], **key)


@cache
def gradients(family: str, checkpointing: bool | str) -> list[Any]:
    model = stirred(replace(TINY[family], gradient_checkpointing=checkpointing))
    return jax.tree.leaves(jax.jit(jax.grad(lambda model: jnp.sum(model.hidden(Tokens.plain(ids())) ** 3)))(model))


@kept_policies
def test_what_is_kept_for_the_backward_pass_changes_no_gradient(family: str, policy: bool | str) -> None:
    expected = gradients(family, True)
    noise = 1e-8 * max(np.abs(one).max() for one in expected)  # all that a bias of keys has, whose gradient is 0
    for left, right in zip(expected, gradients(family, policy), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5 * np.abs(left).max() + noise)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"found model.gradient_checkpointing: some; needed true, false or full"):
        hidden(made(replace(TINY["llama"], gradient_checkpointing="some")), Tokens.plain(ids()))


@families
def test_first_values_follow_from_seed_and_path_alone(config: LmConfig) -> None:
    base, other_seed = made(config), made(config, seed=1)
    deeper = made(replace(config, num_layers=5))  # type: ignore[call-arg]
    wider = initialize(config.parameters(VOCABULARY + 7), 0)
    blocks = [jax.tree.leaves(model.blocks) for model in (base, deeper, wider)]
    for mine, more, same in zip(*blocks, strict=True):
        assert np.array_equal(mine, same)
        if config is not TINY["gpt2"]:  # GPT-2 begins with smaller values the deeper it is
            assert np.array_equal(mine, more[: len(mine)])
    assert not np.array_equal(base.embed_VD, other_seed.embed_VD)
    layers = np.asarray(jax.tree.leaves(base.blocks, is_leaf=lambda leaf: False)[1])
    assert layers.shape[0] == config.cache_sizes()[0]


def test_dropout_depends_on_the_row_and_not_on_how_a_batch_is_split() -> None:
    config = TINY["gpt2"]
    model, tokens = made(config), ids(4)

    def with_dropout(rows: slice, step: int = 0) -> jax.Array:
        plain = Tokens.plain(tokens[rows])
        dropout = Dropout(key=jax.random.key(step), rows_B=jnp.arange(4)[rows])
        return hidden(model, replace(plain, dropout=dropout))

    whole = with_dropout(slice(0, 4))
    halves = jnp.concatenate([with_dropout(slice(0, 2)), with_dropout(slice(2, 4))])
    np.testing.assert_allclose(whole, halves, atol=2e-6)
    assert not np.allclose(whole, with_dropout(slice(0, 4), step=1))
    assert not np.allclose(whole, hidden(model, Tokens.plain(tokens)))
    assert not np.allclose(whole[0], with_dropout(slice(1, 2))[0])


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("llama", {"hidden_dim": 30}, "found hidden_dim: 30 and num_heads: 4"),
        ("llama", {"num_kv_heads": 3}, "num_kv_heads: 3; needed key-value heads that divide"),
        ("gpt_neox", {"hidden_dim": 30}, "found hidden_dim: 30 and num_heads: 4"),
        ("gpt_neox", {"rotary_pct": 0.4}, "found rotary_pct: 0.4, which is 3 of a head's 8 numbers; needed an even"),
        ("gpt_neox", {"rotary_pct": 0.1}, "rotary_pct: 0.1, which is 0 of"),
        ("gpt_neox", {"rotary_pct": 1.25}, "rotary_pct: 1.25, which is 10 of"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(family: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        replace(TINY[family], **sizes)


@families
def test_the_operations_of_a_token_are_those_that_run(config: LmConfig) -> None:
    """A third of them are the forward pass, of which XLA computes all of the square of attention, not the half."""
    wide = replace(config, hidden_dim=128, max_seq_len=64)  # type: ignore[call-arg]
    model, tokens = initialize(wide.parameters(VOCABULARY), 0), jnp.zeros((2, 64), jnp.int32)
    forward = lambda model: logits(model, model.hidden(Tokens.plain(tokens)))  # noqa: E731
    unrolled = jax.tree_util.tree_unflatten(
        jax.tree.structure(replace(wide, scan_layers=False).parameters(VOCABULARY), is_leaf=is_parameter),
        jax.tree.leaves(model),
    )
    ran = jax.jit(forward).lower(unrolled).compile().cost_analysis()["flops"] / tokens.size
    attention = 2 * 64 * 128 * wide.cache_sizes()[0]  # the other half of the square, of each layer
    assert wide.flops_per_token(64, VOCABULARY) / 3 + attention == pytest.approx(ran, rel=0.1)
