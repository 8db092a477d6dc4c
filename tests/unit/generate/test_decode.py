"""Decoding with a cache against a loop of full forwards, for every family; a new one needs a tiny config here."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from ponente.config.errors import RefusedError
from ponente.generate.decode import Rule, decode, generate, prefill, stream
from ponente.generate.layers import ready
from ponente.generate.sampling import SamplingConfig
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.huggingface import import_weights
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig, Tokens, logits
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import is_parameter
from ponente.tokens.load import load_tokenizer

VOCABULARY, LENGTH = 50, 48
TINY: dict[str, LmConfig] = {
    "llama": LlamaConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2,
        use_qk_norm=True, initializer_range=0.3,
    ),
    "gpt2": Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=2, num_heads=4, initializer_range=0.3),
    "gpt_neox": GptNeoxConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, initializer_range=0.3
    ),
    "mudd": MuddConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2,
        mudd_prenorm=True, mudd_postnorm=True, initializer_range=0.3,
    ),
    "mudd_pythia": MuddPythiaConfig(
        max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, initializer_range=0.3
    ),
}  # fmt: skip
PROMPTS = [[7, 8, 9], [3] * 16, [11], list(range(20, 29))]
families = pytest.mark.parametrize("family", list(TINY))
some_families = pytest.mark.parametrize("family", ["gpt2", "llama", "mudd"])


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: made(config) for name, config in TINY.items()}


def made(config: LmConfig) -> Any:
    """A random model whose tokens depend on what came before: of numpy, which compiles nothing."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda one: np.float32(one.mean + random.normal(0, one.std or 0.1, one.shape)),
        config.parameters(VOCABULARY),
        is_leaf=is_parameter,
    )


@jax.jit
def logits_at(model: Any, ids: jax.Array, at: jax.Array) -> jax.Array:
    return logits(model, model.hidden(Tokens.plain(ids))[0, at])


def naive(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens, each by a full forward of all before it, padded behind so as to compile once."""
    ids = list(prompt)
    for _ in range(count):
        padded = jnp.asarray([ids + [0] * (LENGTH - len(ids))])
        ids.append(int(np.argmax(logits_at(model, padded, jnp.asarray(len(ids) - 1)))))
    return ids[len(prompt) :]


def test_every_family_is_held_to_this() -> None:
    assert set(LmConfig.get_known_choices()) == set(TINY)


@families
def test_greedy_with_a_cache_is_the_naive_loop_for_prompts_of_all_lengths_together(
    models: dict[str, Any], family: str
) -> None:
    model = models[family]
    done = generate(model, PROMPTS, SamplingConfig(max_new_tokens=20))
    expected = [naive(model, prompt, 20) for prompt in PROMPTS]
    assert done.ids == expected
    assert done.finish_reasons == ["length"] * 4
    assert len({tuple(row) for row in expected}) == 4, "the rows say too little if they are alike"


def test_a_stream_is_what_generate_gives(models: dict[str, Any]) -> None:
    sampling = SamplingConfig(max_new_tokens=12, temperature=0.8, seed=4)
    for prompt in PROMPTS[:2]:
        assert list(stream(models["llama"], prompt, sampling)) == generate(models["llama"], [prompt], sampling).ids[0]


def test_a_stream_gives_each_token_before_it_makes_the_next(models: dict[str, Any]) -> None:
    endless = stream(models["llama"], [7], SamplingConfig(max_new_tokens=40))
    assert [next(endless) for _ in range(3)] == naive(models["llama"], [7], 3)


def test_a_row_does_not_depend_on_its_batch_mates(models: dict[str, Any]) -> None:
    model, sampling = models["llama"], SamplingConfig(max_new_tokens=16, temperature=1.0, seed=1)
    together = generate(model, PROMPTS, sampling)
    for row, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], sampling, first_row=row).ids == [together.ids[row]]
    others = generate(model, [[1, 2], PROMPTS[1], [5], [6]], sampling)
    assert others.ids[1] == together.ids[1]


def test_draws_repeat_by_seed_and_differ_by_seed_and_row(models: dict[str, Any]) -> None:
    def drawn(seed: int) -> list[list[int]]:
        sampling = SamplingConfig(max_new_tokens=16, temperature=1.5, seed=seed)
        return generate(models["llama"], [[5, 6]] * 4, sampling).ids

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len({tuple(row) for row in drawn(0)}) == 4


@some_families
def test_a_stop_id_ends_a_row_and_is_no_part_of_it(models: dict[str, Any], family: str) -> None:
    free = generate(models[family], PROMPTS, SamplingConfig(max_new_tokens=20)).ids
    stop = free[0][4]
    ended = generate(models[family], PROMPTS, SamplingConfig(max_new_tokens=20, stop_ids=(49, stop)))
    for row, found, reason in zip(free, ended.ids, ended.finish_reasons, strict=True):
        cut = min((row.index(one) for one in (49, stop) if one in row), default=None)
        assert found == row[:cut]
        assert reason == ("length" if cut is None else "stop")


def test_the_first_token_may_be_the_last(models: dict[str, Any]) -> None:
    first = naive(models["llama"], [7], 1)[0]
    sampling = SamplingConfig(max_new_tokens=5, stop_ids=(first,))
    done = generate(models["llama"], [[7]], sampling)
    assert (done.ids, done.finish_reasons) == ([[]], ["stop"])
    assert list(stream(models["llama"], [7], sampling)) == []
    second = naive(models["llama"], [7], 2)[1]
    assert list(stream(models["llama"], [7], SamplingConfig(max_new_tokens=5, stop_ids=(second,)))) == [first]
    one = generate(models["llama"], [[7]], SamplingConfig(max_new_tokens=1))
    assert (one.ids, one.finish_reasons) == ([[first]], ["length"])


@some_families
def test_the_whole_context_can_be_used(models: dict[str, Any], family: str) -> None:
    prompt = [1 + number % 40 for number in range(LENGTH - 6)]
    done = generate(models[family], [prompt, [4]], SamplingConfig(max_new_tokens=6))
    assert done.ids == [naive(models[family], prompt, 6), naive(models[family], [4], 6)]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], [1] * 30], f"found prompt 1 of 30 tokens and max_new_tokens: 19; needed at most {LENGTH} together"),
        ([[1], []], "found prompt 1 without a token; needed at least one"),
        ([[1, 50]], "found id 50 in prompt 0; needed ids from 0 to 49"),
        ([[-1]], "found id -1 in prompt 0"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(
    models: dict[str, Any], prompts: list[list[int]], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        generate(models["llama"], prompts, SamplingConfig(max_new_tokens=19))


def test_no_prompts_give_nothing(models: dict[str, Any]) -> None:
    assert generate(models["llama"], [], SamplingConfig()).ids == []


def test_ids_that_the_tokenizer_does_not_have_are_never_chosen(models: dict[str, Any]) -> None:
    for temperature in (0.0, 5.0):
        sampling = SamplingConfig(max_new_tokens=30, temperature=temperature)
        free = generate(models["llama"], PROMPTS, sampling)
        held = generate(models["llama"], PROMPTS, sampling, vocab_size=20)
        assert max(max(row) for row in free.ids) >= 20
        assert max(max(row) for row in held.ids) < 20


def test_prompts_of_one_bucket_compile_once() -> None:
    model = made(replace(TINY["llama"], max_seq_len=47))  # no other test's
    functions: Any = (prefill, decode)

    def compilations(prompt: list[int], **settings: Any) -> list[int]:
        before = [function._cache_size() for function in functions]
        generate(model, [prompt], SamplingConfig(**settings))
        return [function._cache_size() - size for function, size in zip(functions, before, strict=True)]

    assert compilations([1], max_new_tokens=8, temperature=0.5) == [1, 1]
    assert compilations([2] * 16, max_new_tokens=20, temperature=0.6, seed=9, stop_ids=(3, 4, 5)) == [0, 0]


@some_families
def test_decoding_copies_neither_weights_nor_cache(family: str) -> None:
    config = replace(TINY[family], hidden_dim=256, num_layers=4, max_seq_len=512)  # type: ignore[call-arg]
    decoder = ready(made(config))
    rule = Rule.of(SamplingConfig(), range(4), VOCABULARY)
    filled = partial(prefill, cache_length=512, cache_dtype=np.dtype(np.float32), room=64)
    past, texts = jax.eval_shape(filled, decoder, jnp.ones((4, 16), jnp.int32), jnp.full(4, 9), rule)
    memory: Any = decode.lower(decoder, past, texts, rule, jnp.int32(9)).compile().memory_analysis()
    cache = sum(leaf.size * 4 for leaf in jax.tree.leaves((past.keys, past.values)))
    assert memory.alias_size_in_bytes >= cache
    assert memory.temp_size_in_bytes < cache / 2, "less than the half of its four layers"


def test_half_precision_decodes_and_its_cache_may_be_wider(models: dict[str, Any]) -> None:
    sampling = SamplingConfig(max_new_tokens=8)
    whole = generate(models["gpt2"], PROMPTS, sampling).ids
    half = generate(models["gpt2"], PROMPTS, sampling, dtype=jnp.bfloat16, cache_dtype=jnp.float32).ids
    assert [len(row) for row in half] == [8] * 4
    assert half[0][0] == whole[0][0]


def test_a_model_made_ready_once_gives_the_same(models: dict[str, Any]) -> None:
    sampling = SamplingConfig(max_new_tokens=8)
    assert generate(ready(models["gpt2"]), PROMPTS, sampling) == generate(models["gpt2"], PROMPTS, sampling)


KNOWN = """Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, \
she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play with \
your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she"""  # what llama2.c, whose model it is, says


def test_a_real_model_tells_its_known_story(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("models") / "stories260K"
    config = LlamaConfig.from_hf(json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")
    model = import_weights(config.parameters(512), config.hf_weights(), tensors.__getitem__)
    done = generate(model, [[1]], SamplingConfig(max_new_tokens=200, stop_ids=(1, 2)))
    assert load_tokenizer(str(folder), engine="tokenizers").decode(done.ids[0]) == KNOWN


def test_without_a_number_texts_are_as_long_as_the_model_has_room_for(models: Any) -> None:
    made = generate(models["llama"], [[7], [4, 5, 6]], SamplingConfig()).ids
    assert [len(ids) for ids in made] == [LENGTH - 3, LENGTH - 3]
    assert list(stream(models["llama"], [7], SamplingConfig()))[: LENGTH - 3] == made[0]
