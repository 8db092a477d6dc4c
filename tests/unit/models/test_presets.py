"""Models by name: what a preset's name stands for, what wins over it, and names that are refused."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from ponente.config.errors import UserError
from ponente.models.lm import LmConfig
from ponente.models.parameters import count
from ponente.models.presets import PRESETS
from ponente.train.config import load_train_config

DATA = ("--data.tokenizer", "gpt2", "--data.train_urls", "text.jsonl")
VOCABULARY = 50432


def model_of(*flags: str) -> LmConfig:
    return load_train_config(None, (*DATA, *flags)).config.model


def llama(layers: int, width: int, mlps: int) -> int:
    return layers * (4 * width**2 + 2 * width) + 3 * width * mlps + width + 2 * VOCABULARY * width


def pythia(layers: int, width: int) -> int:
    return layers * (12 * width**2 + 13 * width) + 2 * width + 2 * VOCABULARY * width


def connected(layers: int, width: int, networks: int, norm: int) -> int:
    """Of connections: networks and static weights, norms of all states and mixtures, two more norms in each layer."""
    return networks + (2 * layers + 1) * width + 2 * layers * norm


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("MUDDLlama2Medium", "mudd", llama(24, 1024, 67_584) + connected(24, 1024, 2_355_269, 1024)),
        ("Llama2Medium", "mudd", llama(24, 1024, 24 * 2816)),
        ("MUDDPythia1.4B", "mudd_pythia", pythia(24, 2048) + connected(24, 2048, 4_583_493, 2 * 2048)),
        ("MUDDPythia2.8B", "mudd_pythia", pythia(32, 2560) + connected(32, 2560, 8_775_709, 2 * 2560)),
        ("MUDDFormer2.8B", "mudd", llama(32, 2560, 32 * 6912) + connected(32, 2560, 8_775_709, 2560)),
    ],
)
def test_presets_are_the_sizes_of_the_papers_models(name: str, kind: str, parameters: int) -> None:
    model = model_of("--model.type", "mudd", "--model.preset", name)
    assert model.get_choice_name(type(model)) == kind
    assert count(model.parameters(VOCABULARY)) == parameters
    assert model == model_of("--model.preset", name)  # the type is the preset's


@pytest.mark.parametrize(
    ("name", "heads", "grows", "norms"),
    [
        ("MUDDLlama2Medium", 16, True, True),
        ("Llama2Medium", 16, False, False),
        ("MUDDPythia1.4B", 16, False, True),
        ("MUDDPythia2.8B", 32, False, True),
        ("MUDDFormer2.8B", 32, True, True),
    ],
)
def test_presets_have_what_the_number_of_parameters_does_not_tell(
    name: str, heads: int, grows: bool, norms: bool
) -> None:
    model: Any = model_of("--model.preset", name)
    assert (model.max_seq_len, model.initializer_range, model.num_heads) == (2048, 0.006, heads)
    connected = model.dense_conn and model.has_prenorm, model.dense_conn and model.has_postnorm
    assert (model.dynamic_mlp_dim, *connected) == (grows, norms, norms)


def test_the_baseline_of_the_pair_differs_by_its_connections_alone() -> None:
    mudd, plain = (asdict(model_of("--model.preset", name)) for name in ("MUDDLlama2Medium", "Llama2Medium"))
    other = {key for key in mudd if mudd[key] != plain[key]}
    assert other == {"dense_conn", "dynamic_mlp_dim", "mudd_prenorm", "mudd_postnorm"}
    without = model_of("--model.preset", "MUDDLlama2Medium", "--model.dense_conn", "false")
    assert count(without.parameters(VOCABULARY)) == llama(24, 1024, 24 * 2816)


def test_keys_beside_a_preset_win_over_it() -> None:
    plain = model_of("--model.preset", "MUDDLlama2Medium")
    given = model_of("--model.preset", "MUDDLlama2Medium", "--model.seq_len", "512", "--model.mudd_prenorm", "false")
    assert given == replace(plain, max_seq_len=512, mudd_prenorm=False)  # type: ignore[call-arg]


def test_names_and_types_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UserError) as error:
        model_of("--model.preset", "MUDDLlama3Medium")
    assert "MUDDLlama3Medium" in str(error.value) and ", ".join(PRESETS) in str(error.value)
    with pytest.raises(UserError, match="Write MUDDLlama2Medium if that is what you mean"):
        model_of("--model.preset", "muddllama2medium")
    with pytest.raises(UserError, match="needed one of MUDDLlama2Medium"):
        model_of("--model.preset", "[1]")
    with pytest.raises(UserError, match="needed type: mudd, to which this preset belongs"):
        model_of("--model.type", "llama", "--model.preset", "MUDDPythia1.4B")


def test_how_weights_are_made_is_left_to_us() -> None:
    loaded = load_train_config(None, (*DATA, "--model.type", "mudd", "--model.ddw_gen_pattern", "q,k,v,m"))
    assert any("model.ddw_gen_pattern" in warning and "one pass" in warning for warning in loaded.warnings)
