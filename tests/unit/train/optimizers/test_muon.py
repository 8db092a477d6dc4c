"""Muon: singular values by NumPy, other parameters against AdamW's own updates, and a tiny model that learns a chain.

Updates are made without jit, which for so small arrays only costs time; the sharded ones and the tiny model's are not.
"""

from dataclasses import replace
from typing import Any

import draccus
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.llama import LlamaConfig
from ponente.models.lm import Tokens
from ponente.models.parameters import Parameter, is_parameter, path_name
from ponente.ops.loss import cross_entropy_sums
from ponente.train.optimizers import AdamConfig, MuonConfig, OptimizerConfig

MATRICES = {"w_q_DNH": (16, 24), "w_out_NHD": (24, 16), "w_up_DF": (16, 24), "w_one_FD": (24, 16)}  # in, out
HEADS = {"heads": 3, "head_size": 8}
PARAMETERS = {
    "w_q_DNH": Parameter({"embed": 16, **HEADS}, std=0.1).stacked(3),
    "w_out_NHD": Parameter({**HEADS, "embed": 16}, std=0.1).stacked(3),
    "w_up_DF": Parameter({"embed": 16, "mlp": 24}, std=0.1).stacked(3),
    "w_one_FD": Parameter({"mlp": 24, "embed": 16}, std=0.1),  # not stacked
    "b_q_NH": Parameter(HEADS, std=0.1).stacked(3),
    "norm_mlp_D": Parameter({"embed": 16}, mean=1.0).stacked(3),
    "embed_VD": Parameter({"vocab": 5, "embed": 16}, std=0.1),
    "embed_PD": Parameter({"position": 4, "embed": 16}, std=0.1),
    "w_head_DV": Parameter({"embed": 16, "vocab": 5}, std=0.1),
}
SMALL = {"w": Parameter({"embed": 6, "mlp": 6}, std=1.0), "b": Parameter({"mlp": 6}, std=1.0)}
STEADY: dict[str, Any] = {"lr_schedule": "constant", "warmup": 0.0}
VOCABULARY = 40  # of the chain

Arrays = dict[str, Any]


def arrays_of(parameters: dict[str, Parameter], seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {name: jnp.asarray(random.normal(size=one.shape), jnp.float32) for name, one in parameters.items()}


def updates_of(
    config: OptimizerConfig, parameters: dict[str, Parameter], gradients: list[Arrays], steps: int = 100
) -> list[Arrays]:
    """The updates of each step, of gradients that are given."""
    arrays = arrays_of(parameters, 0)
    transformation = config.build(parameters, steps)
    state, seen = transformation.init(arrays), []
    for gradient in gradients:
        with jax.disable_jit():
            updates, state = transformation.update(gradient, state, arrays)
        arrays = optax.apply_updates(arrays, updates)
        seen.append({name: np.asarray(one) for name, one in updates.items()})
    return seen


def as_matrices(name: str, array: Any) -> np.ndarray:
    """All of a parameter's layers, from input to output."""
    return np.asarray(array).reshape(-1, *MATRICES[name])


def orthogonal(gradient: np.ndarray) -> np.ndarray:
    """U V' of U S V'."""
    left, _, right = np.linalg.svd(gradient, full_matrices=False)
    made: np.ndarray = left @ right
    return made


@pytest.mark.parametrize("is_kimi", [False, True])
def test_updates_of_matrices_are_orthogonal_times_their_scale(is_kimi: bool) -> None:
    """Near U V' of the gradient, which a wrong grouping of axes is not; what Newton-Schulz leaves is its own."""
    gradients = arrays_of(PARAMETERS, 1)
    config = MuonConfig(**STEADY, learning_rate=0.5, use_kimi_scaling=is_kimi)
    updates = updates_of(config, PARAMETERS, [gradients])[0]
    for name, (into, out) in MATRICES.items():
        scale = 0.2 * max(into, out) ** 0.5 if is_kimi else max(1.0, out / into) ** 0.5
        for update, gradient in zip(as_matrices(name, updates[name]), as_matrices(name, gradients[name]), strict=True):
            values = np.linalg.svd(update, compute_uv=False) / (0.5 * scale)
            assert values.min() > 0.6 and values.max() < 1.25, (name, values)
            nearest = orthogonal(gradient)
            cosine = -(update * nearest).sum() / np.linalg.norm(update) / np.linalg.norm(nearest)
            assert cosine > 0.97, (name, cosine)


def test_layers_are_independent() -> None:
    gradients = arrays_of(PARAMETERS, 1)
    others = {name: gradient.at[1].multiply(-3.0) for name, gradient in gradients.items()}
    config = MuonConfig(max_grad_norm=None, **STEADY)
    before, after = (updates_of(config, PARAMETERS, [one])[0] for one in (gradients, others))
    for name in ("w_q_DNH", "w_out_NHD", "w_up_DF"):
        np.testing.assert_array_equal(before[name][[0, 2]], after[name][[0, 2]])
        np.testing.assert_allclose(before[name][1], -after[name][1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LlamaConfig(use_bias=True, use_qk_norm=True, hybrid_norm=True, input_embedding_norm=True),
         {"w_q_DNH", "w_k_DKH", "w_v_DKH", "w_out_NHD", "w_gate_DF", "w_up_DF", "w_down_FD"}),
        (Gpt2Config(), {"w_q_DNH", "w_k_DNH", "w_v_DNH", "w_out_NHD", "w_up_DF", "w_down_FD"}),
        (GptNeoxConfig(), {"w_q_DNH", "w_k_DNH", "w_v_DNH", "w_out_NHD", "w_up_DF", "w_down_FD"}),
    ],
)  # fmt: skip
def test_momentum_is_kept_for_matrices_within_and_two_moments_for_the_rest(model: Any, expected: set[str]) -> None:
    parameters = model.parameters(500)
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, jnp.float32), parameters, is_leaf=is_parameter)
    state = jax.eval_shape(MuonConfig().build(parameters, 10).init, shapes)
    names = [path_name(path).rpartition(".")[2] for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]]
    every = {path_name(path).rpartition(".")[2] for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]}
    assert {name for name in every if names.count(name) == 1} == expected
    assert {name for name in every if names.count(name) >= 2} == every - expected


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_of_earlier_gradients(nesterov: bool) -> None:
    parameters = {"w": SMALL["w"]}
    gradients = [{"w": jnp.zeros((6, 6)).at[place, place].set(1.0)} for place in (0, 1)]
    config = MuonConfig(**STEADY, learning_rate=1.0, momentum=0.5, nesterov=nesterov)
    update = updates_of(config, parameters, gradients)[1]["w"]
    assert -update[0, 0] > 0.5 and -update[1, 1] > 0.5
    np.testing.assert_allclose(update[2:], 0, atol=1e-6)
    alone = updates_of(replace(config, momentum=0.0), parameters, gradients)[1]["w"]
    assert abs(alone[0, 0]) < 1e-6 and -alone[1, 1] > 0.5


@pytest.mark.parametrize("decay", [{}, {"default_weight_decay_mask": False}])
def test_all_other_parameters_get_exactly_the_updates_of_adamw(decay: dict[str, Any]) -> None:
    gradients = [arrays_of(PARAMETERS, seed) for seed in range(1, 4)]
    shared: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.3, "warmup": 2.0, **decay}
    muon = updates_of(MuonConfig(adam_lr=3e-3, learning_rate=0.1, **shared), PARAMETERS, gradients)
    adam = updates_of(AdamConfig(learning_rate=3e-3, **shared), PARAMETERS, gradients)
    for ours, theirs in zip(muon, adam, strict=True):
        for name in PARAMETERS.keys() - MATRICES.keys():
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert all(not np.allclose(muon[-1][name], adam[-1][name]) for name in MATRICES)


def test_one_schedule_goes_for_both_learning_rates() -> None:
    gradients = [arrays_of(PARAMETERS, 1)] * 10
    steady = MuonConfig(learning_rate=0.2, adam_lr=0.1, **STEADY)
    scheduled = replace(steady, lr_schedule="linear", warmup=4.0, min_lr_ratio=0.0)
    shares = [0, 1 / 4, 2 / 4, 3 / 4, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    plain, made = (updates_of(config, PARAMETERS, gradients, steps=10) for config in (steady, scheduled))
    for step, share in enumerate(shares):
        for name, update in made[step].items():
            np.testing.assert_allclose(update, share * plain[step][name], rtol=1e-4, atol=1e-7, err_msg=name)


def test_each_group_decays_by_its_own_strength_where_the_mask_says() -> None:
    arrays, gradients = arrays_of(PARAMETERS, 0), [arrays_of(PARAMETERS, 1)]
    config = MuonConfig(**STEADY, learning_rate=0.5, adam_lr=0.25)
    plain = updates_of(config, PARAMETERS, gradients)[0]
    decayed = updates_of(replace(config, weight_decay=0.2, adam_weight_decay=0.4), PARAMETERS, gradients)[0]
    for name, update in decayed.items():
        strength = 0.5 * 0.2 if name in MATRICES else 0.25 * 0.4 if name == "w_head_DV" else 0.0
        np.testing.assert_allclose(update, plain[name] - strength * arrays[name], rtol=1e-5, atol=1e-6, err_msg=name)
    some = replace(config, weight_decay=0.2, weight_decay_modules=["w_up", "embed_VD", "norm"])
    named = updates_of(some, PARAMETERS, gradients)[0]
    changed = {name for name, update in named.items() if not np.array_equal(update, plain[name])}
    assert changed == {"w_up_DF", "embed_VD", "norm_mlp_D"}


def test_each_key_changes_what_is_learned() -> None:
    gradients = [arrays_of(SMALL, seed) for seed in range(1, 4)]
    base = MuonConfig(**STEADY, weight_decay=0.5, default_weight_decay_mask=False)
    changes: list[dict[str, Any]] = [
        {"momentum": 0.5}, {"nesterov": False}, {"backend_steps": 3}, {"muon_epsilon": 1.0}, {"use_kimi_scaling": True},
        {"learning_rate": 0.1}, {"adam_lr": 1e-3}, {"adam_weight_decay": 0.1}, {"weight_decay": 0.1}, {"beta1": 0.5},
        {"beta2": 0.5}, {"epsilon": 0.1}, {"max_grad_norm": None},
    ]  # fmt: skip
    last = updates_of(base, SMALL, gradients)[-1]
    for change in changes:
        other = updates_of(replace(base, **change), SMALL, gradients)[-1]
        assert any(not np.allclose(last[name], other[name], rtol=1e-4) for name in last), change


def test_it_is_chosen_by_its_type() -> None:
    config = draccus.decode(OptimizerConfig, {"type": "muon", "learning_rate": 0.01, "adam_lr": 1e-3, "momentum": 0.9})
    assert config == MuonConfig(learning_rate=0.01, adam_lr=1e-3, momentum=0.9)


def test_updates_of_sharded_parameters_are_the_same() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    mapping = {"embed": "data", "head_size": "model", "mlp": "model"}
    arrays, gradients = arrays_of(PARAMETERS, 0), arrays_of(PARAMETERS, 1)
    shardings = {
        name: NamedSharding(mesh, PartitionSpec(*(mapping.get(axis) for axis in parameter.axes)))
        for name, parameter in PARAMETERS.items()
    }
    transformation = MuonConfig(**STEADY).build(PARAMETERS, 100)
    there = jax.device_put((arrays, gradients), (shardings, shardings))
    found, _ = jax.jit(transformation.update)(there[1], transformation.init(there[0]), there[0])
    for name, update in updates_of(MuonConfig(**STEADY), PARAMETERS, [gradients])[0].items():
        np.testing.assert_allclose(found[name], update, rtol=1e-3, atol=1e-5, err_msg=name)


# A chain: in seven of eight places, a token follows from the one before it


def chain(steps: int, batch: int = 8, length: int = 16) -> np.ndarray:
    random = np.random.default_rng(0)
    following = random.permutation(VOCABULARY)
    ids = random.integers(0, VOCABULARY, (steps, batch, length))
    for place in range(1, length):
        follows = random.random((steps, batch)) < 7 / 8
        ids[..., place] = np.where(follows, following[ids[..., place - 1]], ids[..., place])
    return ids


def losses_of(config: OptimizerConfig, steps: int = 60) -> list[float]:
    sizes = LlamaConfig(hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, scan_layers=False)
    parameters, random = sizes.parameters(VOCABULARY), np.random.default_rng(0)
    model: Any = jax.tree.map(
        lambda one: jnp.asarray(random.normal(one.mean, one.std, one.shape), jnp.float32),
        parameters,
        is_leaf=is_parameter,
    )
    transformation = config.build(parameters, steps)

    def loss_of(model: Any, ids_BS: Any) -> Any:
        hidden = model.hidden(Tokens.plain(ids_BS[:, :-1])).reshape(-1, sizes.hidden_dim)
        targets = ids_BS[:, 1:].reshape(-1)
        sums = cross_entropy_sums(hidden, model.head_DV(), targets, jnp.ones(targets.shape))
        return sums.loss / sums.weight

    @jax.jit
    def step(model: Any, state: Any, ids_BS: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(model, ids_BS)
        updates, state = transformation.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, loss

    def run(model: Any) -> list[float]:
        state, losses = transformation.init(model), []
        for ids_BS in chain(steps):
            model, state, loss = step(model, state, jnp.asarray(ids_BS))
            losses.append(float(loss))
        return losses

    losses = run(model)
    assert run(model) == losses, "a second run differs"
    return losses


def test_a_tiny_model_learns_a_chain_about_as_fast_as_with_adam() -> None:
    muon, adam = losses_of(MuonConfig(adam_lr=1e-2)), losses_of(AdamConfig(learning_rate=1e-2))
    assert muon[0] == pytest.approx(np.log(VOCABULARY), rel=0.05)
    assert np.mean(muon[-5:]) < muon[0] - 2
    assert np.mean(muon[-5:]) < np.mean(adam[-5:]) + 0.1
