"""Our models against transformers: logits and gradients in float32, and weights there and back.

Models that transformers has no code for are held against the code that is exported with them.
"""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import GENERATED, GOLDENS, OF_OUR_CODE, PROMPT, VARIANTS, VOCABULARY, WITH_GRADIENTS, tokens, weight

from ponente.generate.decode import generate
from ponente.generate.sampling import SamplingConfig
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.hf_connections import connected_code
from ponente.models.huggingface import export_weights, import_weights
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig, Tokens, logits
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import abstract
from ponente.ops.loss import cross_entropy_sums

FAMILIES: dict[str, type[LmConfig]] = {
    "llama": LlamaConfig,
    "qwen3": LlamaConfig,
    "gpt2": Gpt2Config,
    "gpt_neox": GptNeoxConfig,
    "mudd": MuddConfig,
    "mudd_pythia": MuddPythiaConfig,
}
QUICKLY = ("llama_tied", "llama_biases", "qwen3_qk_norm", "gpt2", "gpt2_inverse_layer", "gpt_neox", "mudd_sparse")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run
MAKE_AGAIN = "PYTHONPATH=tests .venv/bin/python tests/parity/make_model_goldens.py " + " ".join(OF_OUR_CODE)


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


def close(found: np.ndarray, expected: np.ndarray, share: float) -> bool:
    return float(np.linalg.norm(found - expected)) <= share * float(np.linalg.norm(expected)) + 1e-9


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_the_likeliest_tokens_are_those_of_transformers(name: str) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    _, _, model = imported(VARIANTS[name])
    found = jax.jit(lambda model, ids: logits(model, model.hidden(Tokens.plain(ids))), compiler_options=QUICK)
    assert close(np.asarray(found(model, tokens())), golden["logits"], 1e-5)
    if name in OF_OUR_CODE:  # each token that torch generated with its cache is the likeliest behind those before it
        generated = golden["generated"]
        whole = np.concatenate([tokens()[:, :PROMPT], generated], axis=1)
        assert np.array_equal(np.argmax(found(model, whole)[:, PROMPT - 1 : -1], axis=-1), generated)


@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.soak) for name in WITH_GRADIENTS]
)
def test_gradients_are_those_of_transformers(name: str) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    config, parameters, model = imported(VARIANTS[name])
    found = jax.jit(jax.grad(loss), compiler_options=QUICK)(model, jnp.asarray(tokens()))
    gradients = dict(export_weights(found, parameters, config.hf_weights()))
    expected = {key.removeprefix("gradient "): golden[key] for key in golden if key.startswith("gradient ")}
    assert set(gradients) == set(expected)
    wrong = [tensor for tensor in expected if not close(gradients[tensor], expected[tensor], 1e-4)]
    assert wrong == []


def test_we_generate_what_torch_generates() -> None:
    _, _, model = imported(VARIANTS["mudd_pythia"])
    done = generate(model, tokens()[:, :PROMPT].tolist(), SamplingConfig(max_new_tokens=GENERATED))
    assert done.ids == np.load(GOLDENS / "mudd_pythia.npz")["generated"].tolist()


@pytest.mark.parametrize("name", OF_OUR_CODE)
def test_goldens_are_of_the_code_that_is_exported(name: str) -> None:
    (code,) = connected_code().values()
    made_with = np.load(GOLDENS / f"{name}.npz")["code"]
    assert made_with == hashlib.sha256(code).hexdigest(), (
        f"modeling_mudd.py changed: make the goldens again: {MAKE_AGAIN}"
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_come_back_as_they_went(name: str) -> None:
    config, parameters, model = imported(VARIANTS[name])
    table = config.hf_weights()
    exported = dict(export_weights(model, parameters, table))
    for tensor, array in exported.items():
        assert np.array_equal(array, weight(tensor, array.shape)), tensor
    again = import_weights(parameters, table, exported.__getitem__)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, model))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_comes_back_as_it_went(name: str) -> None:
    config, _, _ = imported(VARIANTS[name])
    again = type(config).from_hf(config.to_hf(VOCABULARY))
    assert again.to_hf(VOCABULARY) == config.to_hf(VOCABULARY)
    unsaid = {name: None for name in ("head_dim",) if getattr(config, name, "said") is None}  # is written down as it is
    assert replace(again, **unsaid) == config


@pytest.mark.parametrize("name", OF_OUR_CODE)
def test_exported_folders_give_our_logits_in_torch_with_their_own_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="wants torch, which the library does not")
    import transformers
    from exported_in_torch import check_exported

    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in (transformers.dynamic_module_utils, transformers.utils.hub):
        monkeypatch.setattr(module, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert max(check_exported(name, tmp_path).values()) < 0.1  # the largest is of bfloat16


@pytest.mark.parametrize("name", VARIANTS)
def test_the_goldens_are_what_transformers_gives_today(name: str) -> None:
    pytest.importorskip("torch", reason="wants torch, which the library does not")
    import make_model_goldens

    golden = np.load(GOLDENS / f"{name}.npz")
    found, gradients = make_model_goldens.theirs(VARIANTS[name])
    assert close(found, golden["logits"], 1e-4)
    if name in WITH_GRADIENTS:
        assert all(close(gradient, golden[f"gradient {tensor}"], 1e-4) for tensor, gradient in gradients.items())
