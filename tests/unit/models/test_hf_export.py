"""Models of ours as Hugging Face folders: read back by us, by the safetensors library and by transformers."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem
from hf_models import BF16, tensors_of, write_model
from model_variants import VARIANTS, VOCABULARY, tokens

from ponente.config.errors import RefusedError, UserError
from ponente.models.families import lm_config_from_hf
from ponente.models.hf_card import ModelCard
from ponente.models.hf_export import has_hf_model, save_hf_model
from ponente.models.hf_folder import open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig, Tokens, logits

CARD = ModelCard(name="tiny")
TINY = LlamaConfig(max_seq_len=32, hidden_dim=16, intermediate_dim=24, num_layers=2, num_heads=2)


def imported(place: Path | str, vocab_size: int = VOCABULARY) -> tuple[LmConfig, Any]:
    folder = open_hf_model(str(place))
    config = lm_config_from_hf(folder.config)
    return config, load_hf_weights(folder, config, vocab_size, None)


def made(seed: int) -> Any:
    """A model of `TINY` for 40 tokens."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda one: random.standard_normal(one.shape, np.float32), TINY.parameters(40))


def logits_of(model: Any) -> Any:
    return np.asarray(jax.jit(lambda model, ids: logits(model, model.hidden(Tokens.plain(ids))))(model, tokens()))


def save(place: Path | str, model: Any, config: LmConfig, vocab_size: int = VOCABULARY, **options: Any) -> str:
    fixed: dict[str, Any] = {"tokenizer_files": {}, "card": CARD, **options}
    return save_hf_model(str(place), model, config, vocab_size=vocab_size, **fixed)


def assert_stored(place: Path | str, name: str, dtype: Any) -> None:
    found, expected = open_hf_model(str(place)), tensors_of(VARIANTS[name], dtype)
    assert set(found.names) == set(expected)
    for tensor, array in expected.items():
        read = found.read(tensor)
        assert read.dtype == array.dtype and read.tobytes() == array.tobytes(), tensor


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, name: str, dtype: Any) -> None:
    config, model = imported(write_model(tmp_path / "theirs", name, dtype=dtype))
    save(tmp_path / "ours", jax.tree.map(jnp.asarray, model), config)
    assert_stored(tmp_path / "ours", name, dtype)
    stored = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert stored["torch_dtype"] == np.dtype(dtype).name
    assert lm_config_from_hf(stored).to_hf(VOCABULARY) == config.to_hf(VOCABULARY)


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    from safetensors import safe_open

    config, model = imported(write_model(tmp_path / "theirs", "llama_tied"))
    mixed = replace_leaf(model, "norm_D", lambda array: array[:31].astype(BF16))  # an odd number of small numbers
    with pytest.raises(RefusedError, match=r"found norm_D of shape \[31\]; needed \[32\]"):
        save(tmp_path / "wrong", mixed, config)
    save(tmp_path / "ours", replace_leaf(model, "norm_D", lambda array: array.astype(np.float16)), config)
    with safe_open(tmp_path / "ours" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(tensors_of(VARIANTS["llama_tied"])) and "lm_head.weight" not in set(file.keys())
        for name, array in tensors_of(VARIANTS["llama_tied"]).items():
            np.testing.assert_allclose(file.get_tensor(name), array, rtol=1e-3)
        assert file.get_tensor("model.norm.weight").dtype == np.float16


def replace_leaf(model: Any, name: str, change: Any) -> Any:
    import equinox as eqx

    return eqx.tree_at(lambda tree: getattr(tree, name), model, replace_fn=change)


def test_weights_are_saved_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    config, model = imported(write_model(tmp_path / "theirs", "gpt2"))
    save(tmp_path / "ours", model, config, dtype="bfloat16")
    assert_stored(tmp_path / "ours", "gpt2", BF16)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    with pytest.raises(UserError, match="found arrays of type complex64 to export; needed one of"):
        save(tmp_path / "wrong", model, config, dtype=np.complex64)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("max_shard_bytes", [1, 5000, 30_000])
def test_shards_are_one_model_and_none_is_too_large(tmp_path: Path, max_shard_bytes: int) -> None:
    config, model = imported(write_model(tmp_path / "theirs", "llama"))
    save(tmp_path / "ours", model, config, max_shard_bytes=max_shard_bytes)
    assert_stored(tmp_path / "ours", "llama", np.float32)
    index = json.loads((tmp_path / "ours" / "model.safetensors.index.json").read_text())
    expected = tensors_of(VARIANTS["llama"])
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in expected.values())
    files = sorted(path.name for path in (tmp_path / "ours").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert files == [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    for file in files:
        sizes = [expected[name].nbytes for name, shard in index["weight_map"].items() if shard == file]
        assert sum(sizes) <= max_shard_bytes or len(sizes) == 1


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gpt2"])
def test_a_padded_vocabulary_is_cut_back(tmp_path: Path, name: str) -> None:
    config, padded = imported(write_model(tmp_path / "theirs", name), VOCABULARY + 3)
    save(tmp_path / "ours", jax.tree.map(jnp.asarray, padded), config)
    assert_stored(tmp_path / "ours", name, np.float32)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["vocab_size"] == VOCABULARY
    with pytest.raises(RefusedError, match=r"found embed_VD of shape \[64, 32\]; needed \[65, 32\]"):
        save(tmp_path / "larger", padded, config, VOCABULARY + 4)


def test_what_belongs_beside_a_model_is_written(tmp_path: Path) -> None:
    card = ModelCard(
        name="mine", run_id="run|7", steps=1200, tokens=5_000_000, data=("a", "b: c"), eval_loss=2.34567,
        commit="abc123", license="apache-2.0", tags=("small",),
    )  # fmt: skip
    files = {"tokenizer.json": b"{}", "tokenizer_config.json": b"[1]"}
    model = made(0)
    save(tmp_path / "m", model, TINY, 40, card=card, tokenizer_files=files, bos_id=1, eos_ids=(2, 5), pad_id=0)
    ids = {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0}
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text()) == ids
    assert ids.items() <= json.loads((tmp_path / "m" / "config.json").read_text()).items()
    assert open_hf_model(str(tmp_path / "m")).files == files
    _, header, text = (tmp_path / "m" / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(header)
    assert told["library_name"] == "transformers" and told["tags"] == ["ponente", "small"]
    assert told["license"] == "apache-2.0" and "base_model" not in told
    for part in ("# mine", "run\\|7", "1,200", "5,000,000", "a, b: c", "2.3457", "abc123"):
        assert part in text
    save(tmp_path / "n", model, TINY, 40, card="my own words", eos_ids=(2,))
    assert (tmp_path / "n" / "README.md").read_text() == "my own words"
    assert json.loads((tmp_path / "n" / "generation_config.json").read_text()) == {"eos_token_id": 2}


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = made(0)
    with pytest.raises(RefusedError, match=r"found the special ids \[40\] beside a vocabulary of 40"):
        save(tmp_path / "a", model, TINY, 40, eos_ids=(40,))
    for name in ("config.json", "model-1.safetensors", "../x", "sub/tokenizer.json", "README.md"):
        with pytest.raises(RefusedError, match="among the tokenizer's files; needed plain names"):
            save(tmp_path / "a", model, TINY, 40, tokenizer_files={name: b""})
    with pytest.raises(RefusedError, match="hybrid_norm"):
        save(tmp_path / "a", model, replace(TINY, hybrid_norm=True), 40)
    with pytest.raises(RefusedError, match="differs from its config in w_head_DV"):
        save(tmp_path / "a", model, replace(TINY, tie_word_embeddings=True), 40)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_there_stays(tmp_path: Path) -> None:
    for place in (str(tmp_path / "m"), "memory://test-hf-export/m"):
        assert not has_hf_model(place)
        save(place, made(0), TINY, 40)
        assert has_hf_model(place)
        with pytest.raises(RefusedError, match="there already; needed a free place to export to"):
            save(place, made(1), TINY, 40)
        _, found = imported(place, 40)
        assert np.array_equal(found.embed_VD, made(0).embed_VD)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    model = made(0)
    with pytest.raises(TypeError):
        save(tmp_path / "m", model, TINY, 40, tokenizer_files={"tokenizer.json": "not bytes"})
    assert list(tmp_path.iterdir()) == []


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """A store that is no volume of ours; remembers in which order objects came to be."""

    protocol = "hfbucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hfbucket://").strip("/")


def test_elsewhere_the_config_comes_last(tmp_path: Path) -> None:
    fsspec.register_implementation("hfbucket", Bucket, clobber=True)
    config, model = imported(write_model(tmp_path, "gpt2", dtype=BF16))
    place = "hfbucket://models/mine"
    assert not has_hf_model(place)
    save(place, model, config, tokenizer_files={"tokenizer.json": b"{}"}, max_shard_bytes=20_000)
    assert_stored(place, "gpt2", BF16)
    order = [name.removeprefix("/models/mine/") for name in Bucket.store]
    assert order[-2:] == ["model.safetensors.index.json", "config.json"] and order[0].startswith("model-00001-of")
    assert has_hf_model(place)
    with pytest.raises(RefusedError, match="there already"):
        save(place, model, config)
    with pytest.raises(UserError, match="found nosuch://a to export to, whose store cannot be used"):
        save("nosuch://a", model, config)


_MEASURE = """
import resource, sys, tempfile
import numpy as np
from ponente.models.hf_export import save_hf_model
from ponente.models.hf_card import ModelCard
from ponente.models.llama import LlamaConfig
import jax

config = LlamaConfig(max_seq_len=8, hidden_dim=512, intermediate_dim=2048, num_layers=8, num_heads=8)
shapes = config.parameters(16384)
model = jax.tree.map(lambda one: np.full(one.shape, 0.5, np.float32), shapes)
total = sum(array.nbytes for array in jax.tree.leaves(model))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    save_hf_model(folder + "/m", model, config, vocab_size=16000, tokenizer_files={}, card="", dtype=sys.argv[2])
print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_holds_little_beside_the_model(tmp_path: Path, dtype: str) -> None:
    command = [sys.executable, "-c", _MEASURE, str(tmp_path), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    model, more = map(int, done.stdout.split())
    assert model > 180e6
    assert more < 25e6  # less than its largest tensor, the head, which is turned over on its way and has 33.6 MB


@pytest.mark.parametrize(
    "name", ["llama_grouped", "llama_rope_llama3", "qwen3_qk_norm", "gpt2", "gpt2_untied", "gpt_neox"]
)
def test_transformers_reads_our_folder_and_gives_our_logits(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch", reason="wants torch, which the library does not")
    transformers = pytest.importorskip("transformers")
    config, model = imported(write_model(tmp_path / "theirs", name))
    save(tmp_path / "ours", model, config, max_shard_bytes=30_000, eos_ids=(3,), bos_id=1)
    reader = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    read, report = reader
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert read.dtype == torch.float32 and read.generation_config.eos_token_id == 3
    with torch.no_grad():
        expected = read.eval()(torch.tensor(tokens())).logits.numpy()
    np.testing.assert_allclose(logits_of(model), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["llama_tied", "llama_rope_yarn", "qwen3_qk_norm", "gpt2", "gpt_neox"])
def test_a_folder_that_transformers_saved_is_read(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch", reason="wants torch, which the library does not")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**VARIANTS[name])).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    _, model = imported(tmp_path)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens())).logits.numpy()
    np.testing.assert_allclose(logits_of(model), expected, atol=1e-4)
