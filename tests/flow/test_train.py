"""`ponente train` as users call it: the YAML of Levanter's guide, as printed, lowered, and with overrides trained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from guide import GUIDE
from quick import QUICK

from ponente.train.compiling import lower_step
from ponente.train.config import load_train_config

LLAMA = """
model:
  type: llama
initialize_from_hf: "meta-llama/Llama-2-7b-hf"
use_hf_model_config: true
"""
BY_NAME = """
data:
    id: "EleutherAI/pile"
    # if needed:
    # name: "subset"
"""
LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


@pytest.fixture
def hub(tmp_path: Path, tiny_tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache of the hub with what configs name: a tokenizer, and a config without weights."""
    home = tmp_path / "hub"
    tokenizer = {path.name: path.read_bytes() for path in Path(tiny_tokenizer).iterdir()}
    _lay_out(home, "gpt2", tokenizer)
    _lay_out(home, "meta-llama/Llama-2-7b-hf", {**tokenizer, "config.json": json.dumps(LLAMA_CONFIG).encode()})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return home


def _lay_out(home: Path, name: str, files: dict[str, bytes]) -> None:
    commit = "0" * 40
    folder = home / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    for file, data in files.items():
        (snapshot / file).write_bytes(data)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "guide.yaml"
    path.write_text(text)
    return str(path)


def test_the_guides_files_parse_as_printed(tmp_path: Path) -> None:
    config = load_train_config(written(tmp_path, GUIDE)).config
    assert config.model.max_seq_len == 1024
    assert config.trainer.checkpointer.save_interval == "15m"
    assert config.optimizer.learning_rate == 1e-4
    assert config.trainer.tracker.project == "levanter"  # type: ignore[union-attr]
    assert load_train_config(written(tmp_path, BY_NAME)).config.data.components["main"]
    assert load_train_config(written(tmp_path, LLAMA)).config.hf_source == "meta-llama/Llama-2-7b-hf"


def test_the_guides_model_of_1_4_billion_lowers(tmp_path: Path, hub: Path) -> None:
    program = lower_step(load_train_config(written(tmp_path, GUIDE)).config).as_text()
    assert "tensor<48x1536x24x64xf32>" in program  # weights of all layers, in f32
    assert "bf16" in program
    assert "tensor<512x1024xi32>" in program


def test_llama_2_of_the_hub_lowers_without_its_weights(tmp_path: Path, hub: Path) -> None:
    config = load_train_config(written(tmp_path, LLAMA), ["--trainer.train_batch_size", "2"]).config
    program = lower_step(config).as_text()
    assert "tensor<32x4096x11008xf32>" in program
    assert "tensor<2x4096xi32>" in program


@pytest.mark.parametrize(("device", "rows"), [("cpu", "12x64"), ("gpu", "64x256")])
def test_the_shakespeare_configs_lower(device: str, rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    config = load_train_config(f"config/shakespeare_{device}.yaml").config
    assert f"tensor<{rows}xi32>" in lower_step(config).as_text()


@pytest.mark.parametrize("guide", ["gpt2", "llama"])
def test_the_guides_files_train_evaluate_and_export_with_a_few_overrides(
    guide: str, tmp_path: Path, tiny_corpus: Path, tiny_tokenizer: str
) -> None:
    sizes = {
        "gpt2": ["--model.embed_pdrop", "0.2"],
        "llama": ["--model.intermediate_dim", "64", "--initialize_from_hf", "false", "--use_hf_model_config", "false"],
    }
    overrides = [
        *sizes[guide],
        *("--model.hidden_dim", "32", "--model.num_heads", "2", "--model.num_layers", "2"),
        *("--data.train_urls", f'["{tiny_corpus}/0{{0..3}}.jsonl"]', "--data.cache_dir", str(tmp_path / "cache")),
        *("--data.validation_urls", f'["{tiny_corpus}/05.jsonl"]', "--data.tokenizer", tiny_tokenizer),
        *("--model.seq_len", "32", "--trainer.num_train_steps", "5", "--trainer.train_batch_size", "8"),
        *("--trainer.wandb", "null", "--trainer.tracker", "{type: local}", "--trainer.id", "guide"),
        *("--trainer.checkpointer.base_path", str(tmp_path / "checkpoints"), "--hf_save_path", str(tmp_path / "hf")),
        *("--trainer.log_dir", str(tmp_path / "logs")),
    ]
    text = GUIDE if guide == "gpt2" else LLAMA
    done = _ponente("train", "--config_path", written(tmp_path, text), *overrides)
    assert "eval/loss: 5." in done
    exported = tmp_path / "hf" / "guide" / "step_5"
    assert f"Hugging Face model: {exported}" in done
    assert json.loads((exported / "config.json").read_text())["model_type"] == guide
    checkpoint = str(tmp_path / "checkpoints" / "guide")
    again = _ponente("eval", "--checkpoint_path", checkpoint)
    assert _loss(again) == pytest.approx(_loss(done), abs=1e-3)
    assert "To be" in _ponente("sample", "--model", checkpoint, "--prompt", "To be", "--max_new_tokens", "4")


def _ponente(*arguments: str) -> str:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
    command = [sys.executable, "-m", "ponente", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loss(output: str) -> float:
    return float(next(line for line in output.splitlines() if line.startswith("eval/loss: ")).split()[1])
