import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ponente.batches.batch import Batch
from ponente.config.errors import RefusedError
from ponente.models.gpt2 import Gpt2Config
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig
from ponente.models.mudd import MuddConfig
from ponente.models.parameters import initialize
from ponente.train.finiteness import NotFiniteError, check_finite
from ponente.train.mesh import check_rows
from ponente.train.norms import squares
from ponente.train.optimizers import AdamConfig
from ponente.train.precision import Precision
from ponente.train.state import TrainState, named_arrays, state_of, with_arrays
from ponente.train.step import StepSettings, TrainStep
from ponente.train.watch import WatchConfig

VOCAB, ROWS, LENGTH = 61, 8, 16
LLAMA = LlamaConfig(max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=2)
MUDD = MuddConfig(
    max_seq_len=LENGTH, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, gradient_checkpointing=False
)
GPT2 = Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=2, num_heads=4)  # with dropout


def batch(seed: int = 0, rows: int = ROWS) -> Batch:
    """Rows of two documents each, with uneven weights."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCAB, (rows, LENGTH + 1)).astype(np.int32)
    weights = (random.random((rows, LENGTH)) < 0.5).astype(np.float32)
    weights[0] = 0
    half = LENGTH // 2
    segments = np.repeat(np.array([[0, 1]], np.int32), half, axis=1).repeat(rows, axis=0)
    positions = np.tile(np.arange(half, dtype=np.int32), (rows, 2))
    starts = np.tile(np.array([[0, half, -1, -1]], np.int32), (rows, 1))
    lengths = np.tile(np.array([[half, half, 0, 0]], np.int32), (rows, 1))
    return jax.device_put(Batch(ids[:, :-1], ids[:, 1:], weights, segments, positions, starts, lengths))


def settings(**changes: Any) -> StepSettings:
    schedule = AdamConfig(learning_rate=1e-2, warmup=0).learning_rates(100)
    plain = StepSettings(
        optimizer=optax.adam(1e-2),
        learning_rates=schedule,
        precision=Precision.of("f32"),
        seed=0,
        vocab_size=VOCAB,
        blocks_documents=True,
        watch=WatchConfig(),
    )
    return replace(plain, **changes)


def state(model: LmConfig = LLAMA, *, is_averaged: bool = False, rows: int = VOCAB) -> TrainState:
    weights = initialize(model.parameters(rows), seed=0)
    return state_of(weights, optax.adam(1e-2), is_averaged=is_averaged)


def after(steps: int, model: LmConfig = LLAMA, *, is_averaged: bool = False, **changes: Any) -> TrainState:
    run, now = TrainStep(settings(**changes)), state(model, is_averaged=is_averaged)
    for step in range(steps):
        now, _ = run(now, batch(step), step)
    return now


def assert_close(one: Any, other: Any, tolerance: float = 2e-6) -> None:
    for name, array in named_arrays(one).items():
        np.testing.assert_allclose(array, named_arrays(other)[name], atol=tolerance, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2-with-dropout"])
@pytest.mark.parametrize("microbatch", [1, 4])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole_under_uneven_masks(model: LmConfig, microbatch: int) -> None:
    sgd = optax.sgd(1.0)
    whole, parts = settings(optimizer=sgd), settings(optimizer=sgd, microbatch=microbatch)
    start = [state_of(initialize(model.parameters(VOCAB), seed=0), sgd, is_averaged=False) for _ in range(2)]
    one, first = TrainStep(whole)(start[0], batch(), 0)
    other, second = TrainStep(parts)(start[1], batch(), 0)
    assert_close(one.model, other.model)
    np.testing.assert_allclose([first.loss, first.weight], [second.loss, second.weight], rtol=1e-6)


@pytest.mark.parametrize(("model", "weights"), [(LLAMA, 7), (GPT2, 6)], ids=["llama", "gpt2"])
def test_products_of_layers_and_no_others_are_made_in_8_bits_where_asked_for(model: LmConfig, weights: int) -> None:
    """A layer is scanned: each weight has a product forward and two backward, and all but the last one made again."""
    exact, fp8 = (TrainStep(settings(has_fp8=has_fp8)) for has_fp8 in (False, True))
    program = fp8.lower(state(model), batch()).as_text()
    products = re.findall(r"dot_general .*\(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\)", program)
    assert products.count(("f8E4M3FN", "f8E4M3FN")) == 2 * weights - 1
    assert products.count(("f8E5M2", "f8E4M3FN")) + products.count(("f8E4M3FN", "f8E5M2")) == 2 * weights
    assert len(products) > 4 * weights  # also attention and loss
    assert "f8" not in exact.lower(state(model), batch()).as_text()
    _, first = exact(state(model), batch(), 0)
    other, second = fp8(state(model), batch(), 0)
    assert 0 < abs(float(first.loss) - float(second.loss)) < 0.02
    np.testing.assert_allclose(float(second.grad_norm), float(first.grad_norm), rtol=0.05)
    assert {array.dtype.name for array in named_arrays(other.model).values()} == {"float32"}


def test_of_connections_over_depth_nothing_is_made_in_8_bits() -> None:
    """Layers stand in a row, and all is kept: each weight of a layer has one product forward and two backward."""
    program = TrainStep(settings(has_fp8=True)).lower(state(MUDD), batch()).as_text()
    products = re.findall(r"dot_general .*\(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\)", program)
    assert products.count(("f8E4M3FN", "f8E4M3FN")) == 7 * MUDD.num_layers
    assert products.count(("f8E5M2", "f8E4M3FN")) + products.count(("f8E4M3FN", "f8E5M2")) == 14 * MUDD.num_layers


def test_the_loss_is_a_sum_over_a_sum_and_not_a_mean_of_rows() -> None:
    run, parts = TrainStep(settings()), []
    _, metrics = run(state(), batch(), 0)
    for row in range(ROWS):
        one = jax.tree.map(lambda array: array[row : row + 1], batch())
        _, numbers = run(state(), one, 0)
        parts.append((float(numbers.loss), float(numbers.weight)))
    summed = sum(loss * weight for loss, weight in parts) / sum(weight for _, weight in parts)
    np.testing.assert_allclose(float(metrics.loss), summed, rtol=1e-6)
    assert float(metrics.weight) == sum(weight for _, weight in parts)


def test_a_step_of_a_batch_without_any_weight_changes_nothing_by_gradients() -> None:
    empty = batch()._replace(loss_weights_BS=jnp.zeros((ROWS, LENGTH)))
    now, metrics = TrainStep(settings(optimizer=optax.sgd(1.0)))(
        state_of(initialize(LLAMA.parameters(VOCAB), seed=0), optax.sgd(1.0), is_averaged=False), empty, 0
    )
    assert float(metrics.loss) == 0
    assert_close(now.model, initialize(LLAMA.parameters(VOCAB), seed=0), tolerance=0)


def test_one_program_is_compiled_for_each_batch_size() -> None:
    run, now = TrainStep(settings()), state()
    for step in range(3):
        now, _ = run(now, batch(step), step)
    for step in range(3, 6):
        now, _ = run(now, batch(step, rows=4), step)
    assert run.compilations == 2
    assert int(now.step) == 6


def test_the_state_that_is_given_is_used_up() -> None:
    before = state()
    TrainStep(settings())(before, batch(), 0)
    assert before.model.embed_VD.is_deleted()


def test_bfloat16_computes_in_bfloat16_and_keeps_weights_in_float32() -> None:
    now = after(3, precision=Precision.of("p=f32,c=bfloat16"))
    exact = after(3)
    assert now.model.embed_VD.dtype == jnp.float32
    different = np.abs(np.asarray(now.model.embed_VD) - np.asarray(exact.model.embed_VD)).max()
    assert 0 < different < 0.05


def test_padding_of_the_vocabulary_changes_nothing() -> None:
    padded = initialize(LLAMA.parameters(128), seed=0)
    cut = with_arrays(
        initialize(LLAMA.parameters(VOCAB), seed=0),
        {"embed_VD": padded.embed_VD[:VOCAB], "w_head_DV": padded.w_head_DV[:, :VOCAB]},
    )
    sgd = optax.sgd(0.1)
    one, first = TrainStep(settings(optimizer=sgd))(state_of(padded, sgd, is_averaged=False), batch(), 0)
    other, second = TrainStep(settings(optimizer=sgd))(state_of(cut, sgd, is_averaged=False), batch(), 0)
    np.testing.assert_allclose(float(first.loss), float(second.loss), rtol=1e-6)
    np.testing.assert_allclose(one.model.w_head_DV[:, :VOCAB], other.model.w_head_DV, atol=1e-6)


def test_an_average_follows_the_weights() -> None:
    beta = 0.5
    run, now = TrainStep(settings(average_beta=beta)), state(is_averaged=True)
    expected = np.asarray(now.model.embed_VD)
    for step in range(3):
        now, _ = run(now, batch(step), step)
        expected = beta * expected + (1 - beta) * np.asarray(now.model.embed_VD)
    np.testing.assert_allclose(now.average.embed_VD, expected, atol=1e-6)
    assert now.evaluated is now.average
    assert np.abs(np.asarray(now.average.embed_VD) - np.asarray(now.model.embed_VD)).max() > 1e-4


def test_dropout_differs_by_step_and_seed() -> None:
    sgd = optax.sgd(0.0)

    def losses(seed: int) -> list[float]:
        run = TrainStep(settings(optimizer=sgd, seed=seed))
        now, found = state_of(initialize(GPT2.parameters(VOCAB), seed=0), sgd, is_averaged=False), []
        for step in range(3):
            now, metrics = run(now, batch(), step)
            found.append(float(metrics.loss))
        return found

    assert len(set(losses(0))) == 3
    assert losses(0) == losses(0)
    assert losses(0)[0] != losses(1)[0]


def test_a_run_that_is_restarted_begins_its_learning_rate_anew_and_keeps_its_moments() -> None:
    optimizer = AdamConfig(learning_rate=1e-2, warmup=5).build(LLAMA.parameters(VOCAB), 20)
    run = TrainStep(settings(optimizer=optimizer))
    now = state_of(initialize(LLAMA.parameters(VOCAB), seed=0), optimizer, is_averaged=False)
    for step in range(4):
        now, _ = run(now, batch(step), step)
    counts = {name: int(array) for name, array in named_arrays(now.restarted()).items() if name.endswith("count")}
    assert sorted(counts.values()) == [0, 4]
    assert int(now.restarted().step) == 0
    again = named_arrays(now.restarted())
    moments = [name for name in again if ".mu." in name]
    assert moments
    assert all(again[name] is array for name, array in named_arrays(now).items() if name in moments)


def test_what_is_watched_has_the_norms_of_gradients_and_weights() -> None:
    watch = WatchConfig(watch_targets=("grads", "params", "updates"), include_histograms=True, interval=2)
    run = TrainStep(settings(watch=watch))
    now, metrics = run(state(), batch(), 0)
    told = watch.metrics_of(metrics.watched)
    np.testing.assert_allclose(told["grad/norm/total"], float(metrics.grad_norm), rtol=1e-6)
    embed = np.asarray(now.model.embed_VD)
    np.testing.assert_allclose(told["params/norm/embed_VD"], np.sqrt((embed**2).sum()), rtol=1e-6)
    layer = np.asarray(now.model.blocks.mlp.w_up_DF)[1]
    np.testing.assert_allclose(told["params/norm/blocks.1.mlp.w_up_DF"], np.sqrt((layer**2).sum()), rtol=1e-6)
    histogram: Any = told["params/histogram/embed_VD"]
    assert sum(histogram.counts) == embed.size
    assert histogram.edges[0] == pytest.approx(embed.min())
    assert "updates/norm/total" in told
    _, metrics = run(now, batch(1), 1)
    assert not any("histogram" in name for name in metrics.watched)


def test_numbers_that_are_not_finite_stop_the_run_and_name_step_and_parameter() -> None:
    broken = state()
    embed = broken.model.embed_VD.at[0, 0].set(jnp.nan)
    broken = replace(broken, model=with_arrays(broken.model, {"embed_VD": embed}))
    after_it, metrics = TrainStep(settings())(broken, batch(), 7)
    numbers = (float(metrics.loss), float(metrics.grad_norm), metrics.squares, after_it.model)
    with pytest.raises(NotFiniteError, match=r"loss nan.* at step 7; gradients not finite: .*embed_VD"):
        check_finite(7, *numbers, stops_at_nan=True, stops_at_inf=False)
    check_finite(7, *numbers, stops_at_nan=False, stops_at_inf=True)


@pytest.mark.parametrize(
    ("text", "parameters", "compute"),
    [
        ("f32", jnp.float32, jnp.float32),
        ("bfloat16", jnp.bfloat16, jnp.bfloat16),
        ("p=f32,c=bfloat16", jnp.float32, jnp.bfloat16),
        ("params=float32, compute=bf16, output=f32", jnp.float32, jnp.bfloat16),
        ("c=bfloat16", jnp.float32, jnp.bfloat16),
    ],
)
def test_precision_is_read_as_levanter_writes_it(text: str, parameters: Any, compute: Any) -> None:
    assert Precision.of(text) == Precision(parameters=parameters, compute=compute)


@pytest.mark.parametrize("text", ["f31", "p=f32,c=int8", "q=f32", ""])
def test_a_precision_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match=r"found trainer\.mp"):
        Precision.of(text)


def test_rows_at_once_that_do_not_divide_a_batch_are_refused_with_the_nearest_that_do() -> None:
    check_rows(None, [8, 12], 4)
    with pytest.raises(RefusedError, match=r"per_device_parallelism: 5 for a batch of 12 rows.* Set 4"):
        check_rows(None, [12], 5)
    with pytest.raises(RefusedError, match="Set 8"):
        check_rows(None, [8], 16)


def test_infinite_numbers_stop_the_run_by_their_own_key() -> None:
    numbers = (float("inf"), 1.0, squares(state().model), state().model)
    with pytest.raises(NotFiniteError, match="found loss inf at step 3"):
        check_finite(3, *numbers, stops_at_nan=True, stops_at_inf=True)
    check_finite(3, *numbers, stops_at_nan=True, stops_at_inf=False)
