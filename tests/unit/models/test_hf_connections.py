"""Models with connections over depth as Hugging Face folders: the code that goes along, and keys of config.json.

What the code computes is held against ours in tests/parity.
"""

import ast
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hf_models import tensors_of, write_model
from model_variants import VARIANTS, VOCABULARY

from ponente.config.errors import RefusedError
from ponente.models.families import lm_config_from_hf, lm_families
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.hf_card import ModelCard
from ponente.models.hf_connections import CODE, connected_code
from ponente.models.hf_export import save_hf_model
from ponente.models.hf_folder import open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig

SIZES: Any = {"max_seq_len": 32, "hidden_dim": 16, "intermediate_dim": 192, "num_layers": 4, "num_heads": 2}
CONNECTED = {"mudd": MuddConfig(**SIZES), "mudd_pythia": MuddPythiaConfig(rotary_pct=0.5, **SIZES)}
OTHERWISE: dict[str, Any] = {
    "dynamic_dense_type": "qm",
    "dynamic_dense_act_cls": "relu",
    "dynamic_dense_fix_last_layer": False,
    "dynamic_dense_hidden_expand": (1, 2, 3, 4),
    "dynamic_dense_hidden_round": False,
    "mudd_prenorm": True,
    "mudd_postnorm": True,
    "mudd_static": False,
    "mudd_dynamic": False,
    "mudd_dilation": 2,
    "mudd_period": 3,
    "dynamic_mlp_dim": True,
    "use_qk_norm": True,
    "hybrid_norm": True,
    "input_embedding_norm": True,
    "use_layer_norm_weight": False,
    "use_bias": True,
    "num_kv_heads": 1,
    "head_dim": 6,
    "tie_word_embeddings": True,
    "use_parallel_residual": False,
    "initializer_range": 0.5,
    "layer_norm_epsilon": 0.25,
    "activation_function": "gelu_new",
}
NOT_STORED = {  # how it is run; and sizes and rotary positions, which the goldens hold
    "attn_backend", "gradient_checkpointing", "scan_layers", "reference_checkpoint", "upcast_attn", "dense_conn",
    "rope", "rotary_pct", *SIZES,
}  # fmt: skip
KEYS = [(kind, one.name) for kind, config in CONNECTED.items() for one in fields(config) if one.name not in NOT_STORED]
both = pytest.mark.parametrize("kind", CONNECTED)


def saved(place: Path, config: LmConfig, model: Any) -> dict[str, Any]:
    save_hf_model(str(place), model, config, vocab_size=VOCABULARY, tokenizer_files={}, card=ModelCard(name="m"))
    stored: dict[str, Any] = json.loads((place / "config.json").read_text())
    return stored


def zeros(config: LmConfig) -> Any:
    return jax.tree.map(lambda one: np.zeros(one.shape, np.float32), config.parameters(VOCABULARY))


@both
def test_the_code_goes_along_and_config_json_names_classes_of_it(tmp_path: Path, kind: str) -> None:
    stored = saved(tmp_path / "m", CONNECTED[kind], zeros(CONNECTED[kind]))
    code = (tmp_path / "m" / CODE).read_bytes()
    assert code == connected_code()[CODE]
    classes = {node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}
    for place in stored["auto_map"].values():
        module, _, name = place.partition(".")
        assert f"{module}.py" == CODE and name in classes
    assert stored["architectures"] == [stored["auto_map"]["AutoModelForCausalLM"].partition(".")[2]]
    assert stored["model_type"] == kind
    assert CODE in (card := (tmp_path / "m" / "README.md").read_text()) and "trust_remote_code=True" in card


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_every_key_comes_back(kind: str, key: str) -> None:
    config = CONNECTED[kind]
    changed = replace(config, **{key: OTHERWISE[key]})
    stored = json.loads(json.dumps(changed.to_hf(VOCABULARY)))
    assert getattr(lm_config_from_hf(stored), key) == OTHERWISE[key]
    assert stored != json.loads(json.dumps(config.to_hf(VOCABULARY)))


def test_norms_that_depend_on_depth_are_said_outright() -> None:
    for layers, has_norms in ((19, False), (20, True)):
        stored = replace(CONNECTED["mudd"], num_layers=layers).to_hf(VOCABULARY)
        assert stored["mudd_prenorm"] is stored["mudd_postnorm"] is has_norms


@both
def test_norms_that_a_config_json_does_not_name_are_none_at_any_depth(kind: str) -> None:
    """As the code has it that goes along."""
    stored = replace(CONNECTED[kind], num_layers=20).to_hf(VOCABULARY)
    for norm, other in (("mudd_prenorm", "mudd_postnorm"), ("mudd_postnorm", "mudd_prenorm")):
        found = lm_config_from_hf({key: one for key, one in stored.items() if key != norm})
        assert (getattr(found, norm), getattr(found, other)) == (False, True)
        assert getattr(lm_config_from_hf({**stored, norm: None}), norm) is False


@pytest.mark.parametrize(("kind", "plain"), [("mudd", LlamaConfig), ("mudd_pythia", GptNeoxConfig)])
def test_without_connections_it_is_a_plain_model(tmp_path: Path, kind: str, plain: type[LmConfig]) -> None:
    config = replace(CONNECTED[kind], dense_conn=False)
    stored = saved(tmp_path / "m", config, zeros(config))
    assert type(lm_config_from_hf(stored)) is plain and "auto_map" not in stored
    assert stored["model_type"] == plain.hf_model_types[0]
    assert not list((tmp_path / "m").glob("*.py"))
    load_hf_weights(open_hf_model(str(tmp_path / "m")), lm_config_from_hf(stored), VOCABULARY)  # no name is missing


@pytest.mark.parametrize("name", ["mudd", "mudd_pythia"])
def test_code_that_lies_in_a_folder_is_never_run(tmp_path: Path, name: str) -> None:
    folder, ran = write_model(tmp_path / "m", name), tmp_path / "ran"
    for file in (CODE, "modeling_other.py", "configuration_mudd.py", "__init__.py"):
        (folder / file).write_text(f"open({str(ran)!r}, 'w').close()\n")
    stored = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "modeling_other.A", "AutoModelForCausalLM": "modeling_other.B"}
    (folder / "config.json").write_text(json.dumps({**stored, "auto_map": auto_map}))
    opened = open_hf_model(str(folder))
    model = load_hf_weights(opened, lm_config_from_hf(opened.config), VOCABULARY)
    assert np.array_equal(model.embed_VD, tensors_of(VARIANTS[name])["model.embed_tokens.weight"])
    assert not ran.exists()


def test_families_are_found_without_importing_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ponente.models.hf_code.modeling_mudd", raising=False)
    assert {"mudd", "mudd_pythia"} <= lm_families().keys()
    assert "ponente.models.hf_code.modeling_mudd" not in sys.modules


@both
def test_a_tokenizer_does_not_write_over_the_code(tmp_path: Path, kind: str) -> None:
    config = CONNECTED[kind]
    with pytest.raises(RefusedError, match=f"found '{CODE}' among the tokenizer's files"):
        save_hf_model(str(tmp_path / "m"), zeros(config), config, vocab_size=VOCABULARY, card="",
                      tokenizer_files={CODE: b""})  # fmt: skip
