"""Steps on a GPU: on a mesh of one, with all fast kernels inside; with some of what they keep on the host."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from learnt import first_values

from ponente.batches.batch import Batch
from ponente.batches.tables import no_tables, tables_of
from ponente.models.llama import LlamaConfig
from ponente.models.lm import KeyValues, LmConfig, Tokens
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import initialize
from ponente.ops.attention import Mask
from ponente.ops.mesh import Layout
from ponente.store.checkpoint.snapshot import Staging, take_snapshot
from ponente.train.fitting import Need
from ponente.train.mesh import specs_of, state_shardings
from ponente.train.offload import HOST, on_host
from ponente.train.precision import Precision
from ponente.train.state import TrainState, named_arrays, state_of
from ponente.train.step import StepSettings, TrainStep
from ponente.train.watch import WatchConfig

VOCAB, ROWS, LENGTH = 512, 4, 256
MODEL = LlamaConfig(max_seq_len=LENGTH, hidden_dim=256, intermediate_dim=512, num_layers=2, num_heads=4, num_kv_heads=2)
SETTINGS = StepSettings(
    optimizer=optax.trace(0.0),  # whose state are the gradients
    learning_rates=lambda step: 1.0,
    precision=Precision.of("p=f32,c=bfloat16"),
    seed=0,
    vocab_size=VOCAB,
    blocks_documents=True,
    watch=WatchConfig(),
)
DEEP = replace(MODEL, num_layers=8, gradient_checkpointing=True)
EXACT = replace(SETTINGS, optimizer=optax.sgd(0.1, momentum=0.9), precision=Precision.of("f32"))


def batch(*, has_tables: bool) -> Batch:
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    half = LENGTH // 2
    segments = np.repeat(np.array([[0, 1]], np.int32), half, axis=1).repeat(ROWS, axis=0)
    positions = np.tile(np.arange(half, dtype=np.int32), (ROWS, 2))
    firsts = np.arange(0, ROWS * LENGTH, half)
    tables = tables_of(firsts, ROWS, LENGTH, ROWS) if has_tables else no_tables(ROWS)
    return Batch(ids[:, :-1], ids[:, 1:], np.ones((ROWS, LENGTH), np.float32), segments, positions, *tables)


def step(settings: StepSettings, model: LmConfig, given: Batch, layout: Layout | None = None) -> tuple[Any, Any]:
    state = state_of(first_values(model, VOCAB), settings.optimizer, is_averaged=False)
    if layout is None:
        return TrainStep(settings)(state, jax.device_put(given), 0)
    specs = specs_of(layout, model.parameters(VOCAB))
    placed = jax.device_put(state, state_shardings(layout, specs, state))
    settings = replace(settings, layout=layout, specs=specs)
    return TrainStep(settings)(placed, jax.device_put(given, layout.sharding(layout.batch_spec)), 0)


@pytest.mark.parametrize("has_fp8", [False, True])
@pytest.mark.parametrize("checkpointing", [False, "dots_and_attention"])
def test_a_step_on_a_mesh_of_one_is_that_without_a_mesh(has_fp8: bool, checkpointing: bool | str) -> None:
    mesh = jax.make_mesh((1, 1, 1), ("replica", "data", "model"), axis_types=(AxisType.Auto,) * 3)
    layout = Layout(mesh, ("replica", "data"), {"embed": ("data",)})
    model = replace(MODEL, gradient_checkpointing=checkpointing, scan_layers=False)
    settings, given = replace(SETTINGS, has_fp8=has_fp8), batch(has_tables=True)
    expected, found = step(settings, model, given), step(settings, model, given, layout)
    np.testing.assert_allclose(float(found[1].loss), float(expected[1].loss), rtol=1e-4)
    assert "custom-call" in TrainStep(settings).lower(expected[0], jax.device_put(given)).compile().as_text()
    exact = named_arrays(expected[0].optimizer)
    for name, array in named_arrays(found[0].optimizer).items():
        assert_near(array, exact[name], 0.02, name)


@pytest.mark.parametrize("family", [MuddConfig, MuddPythiaConfig])
@pytest.mark.parametrize("has_norms", [False, True])
def test_a_step_with_kernels_of_mixtures_in_16_bits_is_near_one_without_in_32(
    family: Any, has_norms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family(
        max_seq_len=LENGTH,
        hidden_dim=256,
        intermediate_dim=512,
        num_layers=8,  # of which the last mixtures leave gradients to those before them
        num_heads=4,
        mudd_prenorm=has_norms,
        mudd_postnorm=has_norms,
    )
    given = batch(has_tables=True)
    found = step(SETTINGS, model, given)
    lowered = TrainStep(SETTINGS).lower(found[0], jax.device_put(given)).as_text()
    assert "mixed_gradients_8" in lowered
    for op in ("mixing", "norm", "weighing"):
        monkeypatch.setattr(f"ponente.ops.{op}.has_triton", lambda: False)
    with jax.default_matmul_precision("highest"):
        expected = step(replace(SETTINGS, precision=Precision.of("f32")), model, given)
    np.testing.assert_allclose(float(found[1].loss), float(expected[1].loss), rtol=1e-3)
    exact = {name: np.asarray(array, np.float64) for name, array in named_arrays(expected[0].optimizer).items()}
    errors = {name: array - exact[name] for name, array in named_arrays(found[0].optimizer).items()}
    whole, error = (np.linalg.norm([np.linalg.norm(one) for one in each.values()]) for each in (exact, errors))
    assert error <= 0.03 * whole
    for name, one in errors.items():
        assert np.linalg.norm(one) <= 0.1 * np.linalg.norm(exact[name]) + 1e-4 * whole, name


@pytest.mark.parametrize("family", [MuddConfig, MuddPythiaConfig])
@pytest.mark.parametrize("has_norms", [False, True])
def test_tokens_that_are_decoded_one_by_one_are_those_of_whole_rows(family: Any, has_norms: bool) -> None:
    model = family(
        max_seq_len=LENGTH,
        hidden_dim=256,
        intermediate_dim=512,
        num_layers=8,
        num_heads=4,
        mudd_prenorm=has_norms,
        mudd_postnorm=has_norms,
    )
    random = np.random.default_rng(1)
    stirred = jax.tree.map(  # norms too, which are 1 at first
        lambda one: jnp.asarray(one * random.uniform(0.5, 1.5, one.shape), jnp.float32), first_values(model, VOCAB)
    )
    ids = np.random.default_rng(0).integers(0, VOCAB, (ROWS, 12)).astype(np.int32)
    expected = np.asarray(jax.jit(lambda made: made.hidden(Tokens.plain(ids)))(stirred), np.float64)
    past, step = (
        KeyValues.empty(model, ROWS, 16, np.dtype(np.float32)),
        jax.jit(lambda made, *rest: made.extend(*rest)),
    )
    for place in range(12):
        tokens = Tokens(ids_BS=ids[:, place : place + 1], positions_BS=past.length_B[:, None], mask=Mask())
        found, past = step(stirred, tokens, past)
        error = np.linalg.norm(np.asarray(found[:, 0], np.float64) - expected[:, place])
        assert error <= 0.03 * np.linalg.norm(expected[:, place]), place


@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_step_with_connections_needs_memory_that_grows_with_depth_and_not_with_its_square(
    checkpointing: bool,
) -> None:
    def needed(layers: int) -> int:
        model = MuddConfig(
            max_seq_len=LENGTH,
            hidden_dim=256,
            intermediate_dim=512,
            num_layers=layers,
            num_heads=4,
            mudd_prenorm=True,
            mudd_postnorm=True,
            gradient_checkpointing=checkpointing,
        )
        state = jax.eval_shape(
            lambda: state_of(initialize(model.parameters(VOCAB), 0), SETTINGS.optimizer, is_averaged=False)
        )
        return TrainStep(SETTINGS).need(state, jax.device_put(batch(has_tables=False))).temporary

    first, second, third = needed(12), needed(24), needed(48)
    assert 0 < third - second < 2.2 * (second - first)


def assert_near(found: Any, expected: Any, part: float, name: str) -> None:
    """As a whole: a GPU adds in no fixed order, and of many numbers one is always far off for its size."""
    exact = np.asarray(expected, np.float64)
    error = np.linalg.norm(np.asarray(found, np.float64) - exact)
    assert error <= part * max(np.linalg.norm(exact), 1e-6), name


def after_three(settings: StepSettings, model: LlamaConfig) -> tuple[TrainState, Need]:
    state = state_of(initialize(model.parameters(VOCAB), 0), settings.optimizer, is_averaged=False)
    if settings.offloads_optimizer:
        state = jax.device_put(state, jax.tree.map(lambda shape: shape.sharding, on_host(state)))
    step, rows = TrainStep(settings), jax.device_put(batch(has_tables=False))
    need = step.need(state, rows)
    for number in range(3):
        state, _ = step(state, rows, number)
    return state, need


@pytest.mark.parametrize("scan_layers", [False, True])
def test_an_optimizer_on_the_host_is_the_same_and_takes_less_of_the_gpu(scan_layers: bool) -> None:
    model = replace(DEEP, scan_layers=scan_layers)
    expected, before = after_three(EXACT, model)
    found, after = after_three(replace(EXACT, offloads_optimizer=True), model)
    kept = sum(array.nbytes for array in jax.tree.leaves(found.optimizer) if array.ndim)
    assert {array.sharding.memory_kind for array in jax.tree.leaves(found.optimizer) if array.ndim} == {HOST}
    assert before.state - after.state > 0.95 * kept
    staging = Staging()
    staging.acquire()
    taken = take_snapshot(named_arrays(found), staging)
    for name, array in named_arrays(expected).items():
        [(_, there)] = taken[name].shards
        assert_near(there, array, 0.005, name)


def test_inputs_of_layers_on_the_host_give_the_same_and_take_less_of_the_gpu() -> None:
    expected, before = after_three(EXACT, DEEP)
    found, after = after_three(EXACT, replace(DEEP, gradient_checkpointing="offload"))
    assert after.temporary < before.temporary
    for name, array in named_arrays(expected).items():
        assert_near(named_arrays(found)[name], array, 0.005, name)
