"""Optimizers: updates against formulas in NumPy, masks by path, and refusals."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ponente.config.errors import RefusedError
from ponente.models.gpt2 import Gpt2Config
from ponente.models.llama import LlamaConfig
from ponente.models.mudd import MuddConfig
from ponente.models.parameters import Parameter, initialize, is_parameter, path_name
from ponente.train.optimizers import AdamConfig, LionConfig, OptimizerConfig
from ponente.train.optimizers.config import is_matrix
from ponente.train.optimizers.muon import is_within
from ponente.train.optimizers.schedules import PowerDecay

PARAMETERS = {"w": Parameter({"embed": 3, "mlp": 4}, std=1.0), "b": Parameter({"mlp": 4}, std=1.0)}
STEADY = {"lr_schedule": "constant", "warmup": 0.0, "learning_rate": 0.1}


def walked(config: OptimizerConfig, steps: int) -> list[dict[str, np.ndarray]]:
    """The parameters after each of some steps with known gradients."""
    arrays: dict[str, Any] = initialize(PARAMETERS, 0)  # type: ignore[assignment]
    transformation = config.build(PARAMETERS, 100)
    state = transformation.init(arrays)
    seen = []
    for step in range(steps):
        gradients = jax.tree.map(lambda array: jnp.sin(array * 3 + step), arrays)
        updates, state = transformation.update(gradients, state, arrays)
        arrays = optax.apply_updates(arrays, updates)
        seen.append({name: np.asarray(array, np.float64) for name, array in arrays.items()})
    return seen


def test_adam_is_the_formula() -> None:
    config = AdamConfig(**STEADY, weight_decay=0.5, max_grad_norm=0.7)
    arrays = {name: np.asarray(array, np.float64) for name, array in initialize(PARAMETERS, 0).items()}  # type: ignore[attr-defined]
    mean, square = ({name: np.zeros_like(array) for name, array in arrays.items()} for _ in range(2))
    for step, found in enumerate(walked(config, 5)):
        gradients = {name: np.sin(array * 3 + step) for name, array in arrays.items()}
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name in arrays:
            gradient = gradients[name] * min(1.0, 0.7 / norm)
            mean[name] = 0.9 * mean[name] + 0.1 * gradient
            square[name] = 0.95 * square[name] + 0.05 * gradient**2
            corrected = mean[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.95 ** (step + 1))
            direction = corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
            direction += 0.5 * arrays[name] if name == "w" else 0  # a bias does not decay
            arrays[name] = arrays[name] - 0.1 * direction
            np.testing.assert_allclose(found[name], arrays[name], rtol=2e-5, atol=1e-6)


def test_lion_takes_steps_of_one_size() -> None:
    first = walked(LionConfig(**STEADY, weight_decay=0.0), 1)[0]
    begun = initialize(PARAMETERS, 0)
    for name, array in begun.items():  # type: ignore[attr-defined]
        np.testing.assert_allclose(np.abs(first[name] - np.asarray(array)), 0.1, rtol=1e-4)


def test_each_key_changes_what_is_learned() -> None:
    base = AdamConfig(**STEADY, weight_decay=0.5, max_grad_norm=0.7)
    changes: list[dict[str, Any]] = [
        {"beta1": 0.5}, {"beta2": 0.5}, {"epsilon": 0.1}, {"nesterov": True}, {"weight_decay": 0.1},
        {"max_grad_norm": None}, {"learning_rate": 0.2}, {"default_weight_decay_mask": False},
        {"weight_decay_modules": ["b"]}, {"warmup": 10.0}, {"lr_schedule": "linear"},
    ]  # fmt: skip
    last = walked(base, 3)[-1]
    for change in changes:
        other = walked(replace(base, **change), 3)[-1]
        assert any(not np.allclose(last[name], other[name], rtol=1e-6) for name in last), change


def decayed(config: OptimizerConfig, model: LlamaConfig | Gpt2Config) -> set[str]:
    parameters = model.parameters(50)
    flat = jax.tree_util.tree_flatten_with_path(config.decayed(parameters))[0]
    specs = jax.tree.leaves(parameters, is_leaf=is_parameter)
    assert len(flat) == len(specs)
    return {path_name(path).rpartition(".")[2] for path, decays in flat if decays}


def test_matrices_decay_and_norms_biases_and_embeddings_do_not() -> None:
    llama = LlamaConfig(hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, use_bias=True, use_qk_norm=True)
    matrices = {"w_q_DNH", "w_k_DKH", "w_v_DKH", "w_out_NHD", "w_gate_DF", "w_up_DF", "w_down_FD"}
    assert decayed(AdamConfig(), llama) == matrices | {"w_head_DV"}
    gpt2 = Gpt2Config(hidden_dim=32, num_layers=2, num_heads=4)
    assert decayed(AdamConfig(), gpt2) == {"w_q_DNH", "w_k_DNH", "w_v_DNH", "w_out_NHD", "w_up_DF", "w_down_FD"}


def test_decay_may_be_for_named_modules_or_for_all() -> None:
    llama = LlamaConfig(hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4)
    assert decayed(AdamConfig(weight_decay_modules=["mlp"]), llama) == {
        "w_gate_DF",
        "w_up_DF",
        "w_down_FD",
        "norm_mlp_D",
    }
    assert decayed(AdamConfig(weight_decay_modules=r"embed_.*"), llama) == {"embed_VD"}
    both = decayed(AdamConfig(weight_decay_modules=r"embed_.*", default_weight_decay_mask=True), llama)
    assert both == decayed(AdamConfig(), llama) | {"embed_VD"}
    assert "norm_D" in decayed(AdamConfig(default_weight_decay_mask=False), llama)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup": -1.0}, "found optimizer.warmup: -1.0; needed a fraction"),
        ({"decay": 1.5}, "found optimizer.decay: 1.5; needed a fraction"),
        ({"lr_schedule": "cosin"}, "found optimizer.lr_schedule: cosin; needed one of constant, cosine"),
        ({"lr_schedule": "power"}, "power as a mapping"),
        ({"cycles": 2, "cycle_length": 0.5}, "needed at most one of them"),
        ({"cycles": [50, 20]}, "needed rising steps"),
        ({"cycle_length": [90, 90]}, "needed rising steps"),
        ({"lr_schedule": "inv", "min_lr_ratio": 0.0}, "needed min_lr_ratio above 0"),
        ({"lr_schedule": PowerDecay(batch_size=1, seq_length=1, a=-1.0)}, "needed a above 0"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        AdamConfig(**changes).learning_rates(100)


def test_the_power_schedule_follows_tokens_below_the_peak() -> None:
    shape = PowerDecay(batch_size=32, seq_length=128)
    rates = AdamConfig(learning_rate=1e-1, warmup=10.0, lr_schedule=shape).learning_rates(100_000)
    assert float(rates(10)) == pytest.approx(0.1)
    assert float(rates(90_010)) == pytest.approx(32 * 4.6 * (90_000 * 32 * 128) ** -0.51, rel=1e-4)


def test_rewarmup_is_the_warmup_of_every_cycle_but_the_first() -> None:
    rates = AdamConfig(learning_rate=1.0, min_lr_ratio=0.0, warmup=0, cycles=2, rewarmup=5, decay=0).learning_rates(40)
    plain = AdamConfig(learning_rate=1.0, min_lr_ratio=0.0, warmup=0, cycles=2, decay=10).learning_rates(40)
    rewarmed = AdamConfig(learning_rate=1.0, min_lr_ratio=0.0, warmup=0, cycles=2, decay=10, rewarmup=5)
    again = rewarmed.learning_rates(40)
    assert float(rates(30)) == 1.0
    assert float(plain(22)) == 1.0
    assert 0.0 < float(again(22)) < 1.0
    assert float(again(2)) == float(plain(2)) == 1.0


def test_of_connections_both_matrices_decay_and_one_is_orthogonalised() -> None:
    """The second begins at 0 and is small: it is left to Adam."""
    config = MuddConfig(num_layers=2, hidden_dim=8, intermediate_dim=8, num_heads=2, mudd_prenorm=True)
    first = config.parameters(8).connections[0]  # type: ignore[attr-defined]
    matrices = {name: is_matrix(one) for name, one in vars(first).items() if one is not None}
    assert matrices == {"norm_state_D": False, "w_in_DI": True, "w_out_ICM": True, "static_CM": False}
    assert is_within(first.w_in_DI) and not is_within(first.w_out_ICM)
