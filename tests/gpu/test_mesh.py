"""A step written for one device's part of a mesh, with all fast kernels inside, on a mesh of one GPU."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

from ponente.batches.batch import Batch
from ponente.batches.tables import no_tables, tables_of
from ponente.models.llama import LlamaConfig
from ponente.models.parameters import initialize
from ponente.ops.mesh import Layout
from ponente.train.mesh import specs_of, state_shardings
from ponente.train.precision import Precision
from ponente.train.state import named_arrays, state_of
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


def batch(*, has_tables: bool) -> Batch:
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    half = LENGTH // 2
    segments = np.repeat(np.array([[0, 1]], np.int32), half, axis=1).repeat(ROWS, axis=0)
    positions = np.tile(np.arange(half, dtype=np.int32), (ROWS, 2))
    firsts = np.arange(0, ROWS * LENGTH, half)
    tables = tables_of(firsts, ROWS, LENGTH, ROWS) if has_tables else no_tables(ROWS)
    return Batch(ids[:, :-1], ids[:, 1:], np.ones((ROWS, LENGTH), np.float32), segments, positions, *tables)


def step(settings: StepSettings, model: LlamaConfig, given: Batch, layout: Layout | None = None) -> tuple[Any, Any]:
    state = state_of(initialize(model.parameters(VOCAB), 0), settings.optimizer, is_averaged=False)
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
    for name, array in named_arrays(found[0].optimizer).items():
        exact = np.asarray(named_arrays(expected[0].optimizer)[name], np.float64)
        error = np.linalg.norm(np.asarray(jnp.asarray(array), np.float64) - exact)
        assert error <= 0.02 * max(np.linalg.norm(exact), 1e-6), name
