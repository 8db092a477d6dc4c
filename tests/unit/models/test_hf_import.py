"""Weights of Hugging Face folders as ours: names, shapes, vocabularies, and one real model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_models import BF16, Tensors, tensors_of, write_model
from model_variants import VARIANTS, VOCABULARY

from ponente.config.errors import RefusedError, UserError
from ponente.models.families import lm_config_from_hf
from ponente.models.hf_folder import open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.huggingface import export_weights
from ponente.models.lm import Tokens, logits
from ponente.ops.loss import cross_entropy_sums

LLAMA, TIED, GPT2, GPT_NEOX = (VARIANTS[name] for name in ("llama", "llama_tied", "gpt2", "gpt_neox"))


def load(place: Path, vocab_size: int = VOCABULARY, dtype: Any = None, **options: Any) -> Any:
    folder = open_hf_model(str(place))
    return load_hf_weights(folder, lm_config_from_hf(folder.config), vocab_size, dtype, **options)


def theirs(model: Any, config: Any, vocab_size: int = VOCABULARY) -> Tensors:
    ours = lm_config_from_hf(config)
    return dict(export_weights(model, ours.parameters(vocab_size), ours.hf_weights()))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_what_is_loaded_is_what_is_stored(tmp_path: Path, name: str, dtype: Any) -> None:
    found = theirs(load(write_model(tmp_path, name, dtype=dtype)), VARIANTS[name])
    expected = tensors_of(VARIANTS[name], dtype)
    assert set(found) == set(expected)
    for tensor, array in expected.items():
        assert found[tensor].dtype == array.dtype and np.array_equal(found[tensor], array), tensor


def test_weights_are_loaded_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    model = load(write_model(tmp_path, "llama", dtype=BF16), dtype=np.float32)
    assert {array.dtype for array in jax.tree.leaves(model)} == {np.dtype(np.float32)}
    assert all(array.flags.writeable and array.flags.owndata for array in jax.tree.leaves(model))


def test_gpt2_of_the_hub_has_no_prefix_and_has_masks(tmp_path: Path) -> None:
    stored = {name.removeprefix("transformer."): array for name, array in tensors_of(GPT2).items()}
    stored |= {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 64, 64), np.bool_)) for layer in range(3)}
    stored["h.0.attn.masked_bias"] = np.array(-1e4, np.float32)
    found = theirs(load(write_model(tmp_path, GPT2, stored)), GPT2)
    assert all(np.array_equal(found[name], array) for name, array in tensors_of(GPT2).items())


def test_masks_and_frequencies_of_older_pythias_are_passed_over(tmp_path: Path) -> None:
    attention = "gpt_neox.layers.0.attention"
    stored = tensors_of(GPT_NEOX) | {
        f"{attention}.bias": np.tril(np.ones((1, 1, 64, 64), np.bool_)),
        f"{attention}.masked_bias": np.array(-1e9, np.float32),
        f"{attention}.rotary_emb.inv_freq": np.ones(1, np.float32),
    }
    found = theirs(load(write_model(tmp_path, GPT_NEOX, stored)), GPT_NEOX)
    assert all(np.array_equal(found[name], array) for name, array in tensors_of(GPT_NEOX).items())


def test_frequencies_that_older_models_store_are_passed_over(tmp_path: Path) -> None:
    stored = tensors_of(LLAMA) | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    load(write_model(tmp_path, LLAMA, stored))


def test_missing_and_unknown_tensors_are_named_before_any_is_read(tmp_path: Path) -> None:
    whole = tensors_of(LLAMA)
    lacking = {
        name: array for name, array in whole.items() if ".1.mlp.up_proj" not in name and name != "lm_head.weight"
    }
    with pytest.raises(
        UserError, match=r"without lm_head\.weight, model\.layers\.1\.mlp\.up_proj\.weight; needed all 30"
    ):
        load(write_model(tmp_path / "lacking", LLAMA, lacking))
    more = whole | {"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}
    with pytest.raises(
        RefusedError, match=r"with model\.layers\.0\.self_attn\.q_proj\.bias; .* of the model of its conf"
    ):
        load(write_model(tmp_path / "more", LLAMA, more))
    with pytest.raises(RefusedError, match=r"model\.layers\.3\.input_layernorm\.weight.* and 1 more; needed"):
        load(write_model(tmp_path / "deeper", LLAMA, tensors_of({**LLAMA, "num_hidden_layers": 4})))


def test_a_model_that_is_not_that_of_the_folder_is_told_from_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    llama = open_hf_model(str(write_model(tmp_path / "llama", LLAMA, tensors_of(LLAMA))))
    other = r"of the model that is asked for, which is not the one of its config\.json \({}.*use_hf_model_config: true"
    with pytest.raises(UserError, match=r"without .*\." + ".*" + other.format("model_type: llama → gpt_neox")):
        load_hf_weights(llama, lm_config_from_hf(GPT_NEOX), VOCABULARY)
    deeper = {**LLAMA, "num_hidden_layers": LLAMA["num_hidden_layers"] + 1}
    with pytest.raises(UserError, match=r"without .*" + other.format("num_hidden_layers: 3 → 4")):
        load_hf_weights(llama, lm_config_from_hf(deeper), VOCABULARY)


def test_a_shape_of_another_config_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, LLAMA, tensors_of({**LLAMA, "intermediate_size": 64}))
    with pytest.raises(
        UserError, match=r"found model\.layers\.0\.mlp\.gate_proj\.weight of shape \[64, 32\].*needed \[48"
    ):
        load(folder)


def test_a_second_copy_of_tied_embeddings_must_be_equal(tmp_path: Path) -> None:
    stored = tensors_of(TIED)
    twice = stored | {"lm_head.weight": stored["model.embed_tokens.weight"]}
    assert load(write_model(tmp_path / "equal", TIED, twice)).w_head_DV is None
    for number, wrong in enumerate((twice["lm_head.weight"] * 1.5, twice["lm_head.weight"][:-1])):
        other = twice | {"lm_head.weight": wrong.astype(np.float32)}
        with pytest.raises(RefusedError, match=r"found lm_head\.weight .* differs .* tie_word_embeddings: true"):
            load(write_model(tmp_path / f"other{number}", TIED, other))


@pytest.mark.parametrize("config", [LLAMA, TIED, GPT2], ids=["llama", "tied", "gpt2"])
def test_tokens_that_are_added_never_win_and_leave_the_others_as_they_are(tmp_path: Path, config: Any) -> None:
    folder = write_model(tmp_path, config)
    plain, padded = load(folder), load(folder, VOCABULARY + 7)
    ids = jnp.asarray(np.arange(40).reshape(2, 20) % VOCABULARY)
    run = jax.jit(lambda model: logits(model, model.hidden(Tokens.plain(ids))))
    before, after = np.asarray(run(plain)), np.asarray(run(padded))
    assert after.shape[-1] == VOCABULARY + 7
    np.testing.assert_allclose(after[..., :VOCABULARY], before, atol=1e-5)
    mean = np.repeat(before.mean(-1, keepdims=True), 7, axis=-1)
    np.testing.assert_allclose(after[..., VOCABULARY:], mean, atol=1e-5)
    assert (after.argmax(-1) < VOCABULARY).all()
    added = np.exp(after[..., VOCABULARY:]).sum(-1) / np.exp(after).sum(-1)
    assert (added <= 7 / (VOCABULARY + 7)).all()


def test_tokens_are_cut_off_only_when_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path, LLAMA)
    with pytest.raises(UserError, match=r"with 61 tokens; needed 50, which would cut some off"):
        load(folder, 50)
    cut = load(folder, 50, extra_rows="cut")
    stored = tensors_of(LLAMA)
    assert np.array_equal(cut.embed_VD, stored["model.embed_tokens.weight"][:50])
    assert np.array_equal(cut.w_head_DV, stored["lm_head.weight"][:50].T)


def test_a_real_model_predicts_stories_as_well_as_it_is_known_to(shared_data: Callable[[str], Path]) -> None:
    """stories260K of karpathy/tinyllamas, on 40 windows of a BOS and 511 tokens; transformers gives 8.5425 on them."""
    from ponente.tokens.load import load_tokenizer

    place = shared_data("models") / "stories260K"
    model = load(place, 512, np.float32)
    text = (shared_data("corpora") / "mixed" / "tiny.utf8").read_text()[:60_000]
    tokens = load_tokenizer(str(place)).encode_flat([text])[0][1 : 1 + 40 * 511].reshape(40, 511)
    ids = np.concatenate([np.ones((40, 1), np.int32), tokens.astype(np.int32)], axis=1)

    @jax.jit
    def sums(model: Any, ids_BS: Any) -> Any:
        hidden = model.hidden(Tokens.plain(ids_BS))[:, :-1]
        flat = hidden.reshape(-1, hidden.shape[-1])
        found = cross_entropy_sums(flat, model.head_DV(), ids_BS[:, 1:].reshape(-1), jnp.ones(flat.shape[0]))
        return found.loss / found.weight

    assert json.loads((place / "config.json").read_text())["tie_word_embeddings"]
    assert float(np.exp(sums(model, ids))) == pytest.approx(8.5425, abs=2e-4)
