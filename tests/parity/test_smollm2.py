"""A real model, SmolLM2-135M-Instruct, against transformers: perplexity, greedy text, its folder there and back.

Four windows here; all 64 that ../shared/data/README.md tells of with `pytest -m soak tests/parity/test_smollm2.py`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from ponente.generate.sampling import SamplingConfig
from ponente.generate.text import complete
from ponente.models.families import lm_config_from_hf
from ponente.models.hf_export import save_hf_model
from ponente.models.hf_folder import open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.lm import Tokens, logits
from ponente.ops.loss import cross_entropy_sums
from ponente.tokens.load import load_tokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared"
FOLDER = Path.home() / ".cache" / "ponente-data" / "smollm2-135m"
VOCABULARY, LENGTH = 49152, 1024
# what transformers 5.22.2 with torch 2.13 gives in float32
PERPLEXITIES = {4: 21.186267, 64: 21.735994}
# 20 prompts, and what it continues them with greedily; PONENTE_WRITE_GOLDEN=1 has transformers write them anew
GREEDY = Path(__file__).parent / "golden" / "smollm2_greedy.json"
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The model's folder, made once a machine from what PyPI has."""
    if not FOLDER.is_dir():
        tool = SHARED / "tools" / "make_smollm2.py"
        if not tool.is_file():
            pytest.skip(
                f"wants {FOLDER}; make it with make_smollm2.py, which the shared tools have, and there is no {tool}"
            )
        _make(tool)
    return FOLDER


def _make(tool: Path) -> None:
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix=".making-") as private:
        packages, made = f"{private}/packages", f"{private}/made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, "gguf"]
        try:
            subprocess.run(pip, check=True, timeout=60)
            environment = {**os.environ, "PYTHONPATH": packages}
            subprocess.run([sys.executable, tool, made], check=True, timeout=120, env=environment)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(
                f"wants {FOLDER}, which could not be made ({error}); make it: pip install gguf; python {tool} {FOLDER}"
            )
        if not FOLDER.is_dir():
            os.rename(made, FOLDER)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    folder = open_hf_model(str(smollm2))
    return load_hf_weights(folder, lm_config_from_hf(folder.config), VOCABULARY, np.float32)


@pytest.fixture(scope="module")
def windows(smollm2: Path, shared_data: Callable[[str], Path]) -> NDArray[np.int32]:
    text = (shared_data("corpora") / "wikitext-2" / "test.txt").read_text()
    ids = load_tokenizer(str(smollm2)).encode_flat([text])[0]
    return ids[: 64 * LENGTH].reshape(64, LENGTH).astype(np.int32)


def perplexity(model: Any, windows: NDArray[np.int32]) -> float:
    @jax.jit
    def loss(model: Any, ids_S: Any) -> Any:
        hidden_SD = model.hidden(Tokens.plain(ids_S[None]))[0, :-1]
        return cross_entropy_sums(hidden_SD, model.head_DV(), ids_S[1:], jnp.ones(len(ids_S) - 1)).loss

    placed = jax.tree.map(jnp.asarray, model)
    total = sum(float(loss(placed, window)) for window in windows)
    return float(np.exp(total / (len(windows) * (LENGTH - 1))))


@pytest.mark.parametrize("count", [4, pytest.param(64, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_perplexity_is_that_of_transformers(model: Any, windows: NDArray[np.int32], count: int) -> None:
    assert perplexity(model, windows[:count]) == pytest.approx(PERPLEXITIES[count], rel=1e-5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_perplexities_are_what_transformers_gives_today(smollm2: Path, windows: NDArray[np.int32]) -> None:
    torch = pytest.importorskip("torch", reason="wants torch, which the library does not")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    losses = []
    for window in windows:
        ids = torch.tensor(window[None].astype(np.int64))
        with torch.no_grad():
            found = theirs(ids).logits[0, :-1].double()
        losses.append(float(torch.nn.functional.cross_entropy(found, ids[0, 1:])))
    for count, expected in PERPLEXITIES.items():
        assert float(np.exp(np.mean(losses[:count]))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.soak)])
def test_greedy_text_is_that_of_transformers(smollm2: Path, model: Any, count: int) -> None:
    expected: dict[str, str] = dict(list(json.loads(GREEDY.read_text()).items())[:count])
    assert len(expected) == count
    sampling = SamplingConfig(temperature=0, max_new_tokens=NEW_TOKENS)
    found = complete(jax.tree.map(jnp.asarray, model), load_tokenizer(str(smollm2)), list(expected), sampling)
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.soak
def test_the_greedy_texts_are_what_transformers_gives_today(smollm2: Path) -> None:
    torch = pytest.importorskip("torch", reason="wants torch, which the library does not")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    expected = json.loads(GREEDY.read_text())

    def continued(prompt: str) -> str:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            whole = theirs.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=2)
        text: str = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        return text

    found = {prompt: continued(prompt) for prompt in expected}
    if os.environ.get("PONENTE_WRITE_GOLDEN"):
        GREEDY.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(GREEDY.read_text())


@pytest.fixture(scope="module")
def exported(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model as we export it, in the type that it came in."""
    folder = open_hf_model(str(smollm2))
    config = lm_config_from_hf(folder.config)
    model = load_hf_weights(folder, config, VOCABULARY + 128, None)
    place = tmp_path_factory.mktemp("smollm2") / "exported"
    return save_hf_model(
        str(place), model, config, vocab_size=VOCABULARY, tokenizer_files=folder.files, card="", bos_id=1,
        eos_ids=(2,), pad_id=2, max_shard_bytes=100 << 20,
    )  # fmt: skip


def test_an_exported_model_has_the_tensors_and_files_that_came_in(smollm2: Path, exported: str) -> None:
    before, after = open_hf_model(str(smollm2)), open_hf_model(exported)
    assert set(before.names) == set(after.names)
    assert all(before.read(name).tobytes() == after.read(name).tobytes() for name in before.names)
    assert before.files == after.files
    assert after.config | before.config == after.config


def test_transformers_gives_our_logits_of_the_exported_model(
    exported: str, model: Any, windows: NDArray[np.int32]
) -> None:
    torch = pytest.importorskip("torch", reason="wants torch, which the library does not")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    ids = windows[:1, :256]
    with torch.no_grad():
        expected = theirs(torch.tensor(ids.astype(np.int64))).logits.numpy()
    found = np.asarray(jax.jit(lambda model: logits(model, model.hidden(Tokens.plain(jnp.asarray(ids)))))(model))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.array_equal(found.argmax(-1), expected.argmax(-1))
