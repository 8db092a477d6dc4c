"""Our models against transformers: logits and gradients in float32, and weights there and back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import GOLDENS, VARIANTS, VOCABULARY, tokens, weight

from ponente.models.gpt2 import Gpt2Config
from ponente.models.huggingface import export_weights, import_weights
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig, Tokens, logits
from ponente.models.parameters import abstract
from ponente.ops.loss import cross_entropy_sums

FAMILIES: dict[str, type[LmConfig]] = {"llama": LlamaConfig, "qwen3": LlamaConfig, "gpt2": Gpt2Config}


def imported(config: dict[str, Any]) -> Any:
    """Our model with their weights."""
    ours = FAMILIES[config["model_type"]].from_hf(config)
    parameters = ours.parameters(VOCABULARY)
    table = ours.hf_weights()
    empty = jax.tree.map(lambda one: np.zeros(one.shape), abstract(parameters))
    shapes = {name: array.shape for name, array in export_weights(empty, parameters, table)}
    return ours, parameters, import_weights(parameters, table, lambda name: weight(name, shapes[name]))


def loss(model: Any, ids: Any) -> Any:
    hidden = model.hidden(Tokens.plain(ids))
    flat = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    sums = cross_entropy_sums(flat, model.head_DV(), ids[:, 1:].reshape(-1), jnp.ones(flat.shape[0]))
    return sums.loss / sums.weight


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return float(np.linalg.norm(found - expected)) <= 1e-4 * float(np.linalg.norm(expected)) + 1e-9


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_gradients_are_those_of_transformers(name: str) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    config, parameters, model = imported(VARIANTS[name])
    ids = jnp.asarray(tokens())
    found = jax.jit(lambda model: logits(model, model.hidden(Tokens.plain(ids))))(model)
    assert close(np.asarray(found), golden["logits"])
    gradients = dict(export_weights(jax.jit(jax.grad(loss))(model, ids), parameters, config.hf_weights()))
    expected = {key.removeprefix("gradient "): golden[key] for key in golden if key.startswith("gradient ")}
    assert set(gradients) == set(expected)
    wrong = [tensor for tensor in expected if not close(gradients[tensor], expected[tensor])]
    assert wrong == []


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_come_back_as_they_went(name: str) -> None:
    config, parameters, model = imported(VARIANTS[name])
    for tensor, array in export_weights(model, parameters, config.hf_weights()):
        assert np.array_equal(array, weight(tensor, array.shape)), tensor


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_comes_back_as_it_went(name: str) -> None:
    config, _, _ = imported(VARIANTS[name])
    stored = config.to_hf(VOCABULARY)
    assert type(config).from_hf(stored).to_hf(VOCABULARY) == stored


@pytest.mark.parametrize("name", VARIANTS)
def test_the_goldens_are_what_transformers_gives_today(name: str) -> None:
    pytest.importorskip("torch", reason="wants torch, which the library does not")
    import make_model_goldens

    golden = np.load(GOLDENS / f"{name}.npz")
    found, gradients = make_model_goldens.theirs(VARIANTS[name])
    assert close(found, golden["logits"])
    assert all(close(gradient, golden[f"gradient {tensor}"]) for tensor, gradient in gradients.items())
