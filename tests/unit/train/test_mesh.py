"""Steps on eight devices against one: losses, gradients, what each device holds, and which collectives there are."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from learnt import first_values
from unit.train.test_step import ROWS, batch

from ponente.config.errors import RefusedError
from ponente.models.gpt2 import Gpt2Config
from ponente.models.gpt_neox import GptNeoxConfig
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import initialize, path_name
from ponente.ops.mesh import Layout
from ponente.train.mesh import MeshConfig, check_rows, specs_of, state_shardings
from ponente.train.optimizers import MuonConfig
from ponente.train.precision import Precision
from ponente.train.state import named_arrays, state_of
from ponente.train.step import StepSettings, TrainStep
from ponente.train.watch import WatchConfig

VOCAB, PADDED = 61, 64
SPLIT = frozenset({"heads", "kv_heads", "mlp", "vocab"})
LLAMA = LlamaConfig(
    max_seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=3, num_heads=8, num_kv_heads=8, use_qk_norm=True
)
GPT2 = Gpt2Config(max_seq_len=16, hidden_dim=32, num_layers=2, num_heads=8)  # with dropout
GPT_NEOX = GptNeoxConfig(max_seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=8, rotary_pct=0.5)
MUDD = MuddConfig(
    max_seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=8, mudd_prenorm=True,
    mudd_postnorm=True, gradient_checkpointing=False,
)  # fmt: skip
MUDD_PYTHIA = MuddPythiaConfig(
    max_seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=8, rotary_pct=0.5
)
SHAPES = {  # replica, data, model
    "fsdp 8": (1, 8, 1),
    "tensor 8": (1, 1, 8),
    "fsdp 4 x tensor 2": (1, 4, 2),
    "replica 2 x fsdp 4": (2, 4, 1),
    "replica 2 x fsdp 2 x tensor 2": (2, 2, 2),
}


def layout_of(shape: tuple[int, int, int], split: frozenset[str] = SPLIT) -> Layout:
    mesh = jax.make_mesh(shape, ("replica", "data", "model"), axis_types=(AxisType.Auto,) * 3)
    return Layout(mesh, ("replica", "data"), {"embed": ("data",)}, split if shape[2] > 1 else frozenset())


def settings(**changes: Any) -> StepSettings:
    plain: dict[str, Any] = {
        "optimizer": optax.trace(0.0),  # whose state are the gradients
        "learning_rates": lambda step: 1.0,
        "precision": Precision.of("f32"),
        "seed": 0,
        "vocab_size": VOCAB,
        "blocks_documents": True,
        "z_loss": 1e-3,
        "watch": WatchConfig(),
    }
    return StepSettings(**(plain | changes))


def step_on(
    model: LmConfig, shape: tuple[int, int, int], split: frozenset[str] = SPLIT, rows: int = ROWS, **changes: Any
) -> tuple[Any, Any]:
    """The state after a step and what it told, on a mesh."""
    layout = layout_of(shape, split)
    specs = specs_of(layout, model.parameters(PADDED))
    given = settings(layout=layout, specs=specs, **changes)
    state = state_of(first_values(model, PADDED), given.optimizer, is_averaged=False)
    placed = jax.device_put(state, state_shardings(layout, specs, state))
    return TrainStep(given)(placed, jax.device_put(batch(rows=rows), layout.sharding(layout.batch_spec)), 0)


def step_on_one(model: LmConfig, rows: int = ROWS, **changes: Any) -> tuple[Any, Any]:
    given = settings(**changes)
    state = state_of(first_values(model, PADDED), given.optimizer, is_averaged=False)
    return TrainStep(given)(state, batch(rows=rows), 0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_step_of_llama_is_that_of_one_device(shape: tuple[int, int, int]) -> None:
    assert_equal_steps(step_on(LLAMA, shape), step_on_one(LLAMA))


@pytest.mark.parametrize("microbatch", [1, 2])
def test_rows_of_a_device_may_be_taken_a_few_at_a_time(microbatch: int) -> None:
    assert_equal_steps(step_on(LLAMA, (1, 2, 2), microbatch=microbatch), step_on_one(LLAMA))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True, "use_bias": True},
        {"hybrid_norm": True, "input_embedding_norm": True, "num_kv_heads": 4},
        {"scan_layers": False, "gradient_checkpointing": False},
    ],
)
def test_other_llamas_are_those_of_one_device(changes: dict[str, Any]) -> None:
    model = replace(LLAMA, **changes)
    assert_equal_steps(step_on(model, (1, 4, 2)), step_on_one(model))


def test_a_step_in_half_precision_is_near_that_of_one_device() -> None:
    half = Precision.of("p=f32,c=bfloat16")
    found, expected = step_on(LLAMA, (2, 2, 2), precision=half), step_on_one(LLAMA, precision=half)
    np.testing.assert_allclose(found[1].loss, expected[1].loss, rtol=2e-3)
    np.testing.assert_allclose(found[1].grad_norm, expected[1].grad_norm, rtol=2e-2)


def test_a_step_in_8_bits_on_a_mesh_is_near_that_of_one_device() -> None:
    found, expected = step_on(LLAMA, (1, 4, 2), has_fp8=True), step_on_one(LLAMA, has_fp8=True)
    np.testing.assert_allclose(found[1].loss, expected[1].loss, rtol=5e-3)
    np.testing.assert_allclose(found[1].grad_norm, expected[1].grad_norm, rtol=5e-2)


@pytest.mark.parametrize("split", [{"mlp"}, {"heads", "kv_heads"}, {"vocab"}])
def test_what_is_split_may_be_chosen(split: set[str]) -> None:
    assert_equal_steps(step_on(LLAMA, (1, 2, 4), frozenset(split)), step_on_one(LLAMA))


def test_a_step_of_gpt2_is_that_of_one_device_with_the_same_dropout() -> None:
    assert_equal_steps(step_on(GPT2, (1, 4, 2)), step_on_one(GPT2))


def test_a_step_of_gpt_neox_is_that_of_one_device() -> None:
    assert_equal_steps(step_on(GPT_NEOX, (1, 4, 2)), step_on_one(GPT_NEOX))


@pytest.mark.parametrize("model", [MUDD, MUDD_PYTHIA], ids=["mudd", "mudd_pythia"])
def test_a_step_with_connections_over_depth_is_that_of_one_device(model: LmConfig) -> None:
    assert_equal_steps(step_on(model, (1, 4, 2)), step_on_one(model))


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    "model", [LLAMA, GPT2, GPT_NEOX, MUDD, MUDD_PYTHIA], ids=["llama", "gpt2", "gpt_neox", "mudd", "mudd_pythia"]
)
def test_every_mesh_with_and_without_accumulation(shape: tuple[int, int, int], parts: int, model: LmConfig) -> None:
    rows = 32 // (shape[0] * shape[1])
    found = step_on(model, shape, rows=32, microbatch=None if parts == 1 else rows // parts)
    assert_equal_steps(found, step_on_one(model, rows=32))


def test_muon_on_a_mesh_is_that_of_one_device() -> None:
    muon = MuonConfig(learning_rate=1e-2, warmup=0).build(LLAMA.parameters(PADDED), 10)
    found, expected = step_on(LLAMA, (1, 4, 2), optimizer=muon)[0], step_on_one(LLAMA, optimizer=muon)[0]
    for name, array in named_arrays(found.model).items():
        np.testing.assert_allclose(array, named_arrays(expected.model)[name], rtol=1e-3, atol=2e-5, err_msg=name)


def test_each_device_holds_its_part_of_the_state_and_no_more() -> None:
    big = LlamaConfig(max_seq_len=16, hidden_dim=64, intermediate_dim=256, num_layers=2, num_heads=8, num_kv_heads=8)
    layout = layout_of((1, 8, 1))
    specs, given = specs_of(layout, big.parameters(PADDED)), settings(optimizer=optax.adam(1e-3), layout=layout)
    state = jax.eval_shape(lambda: state_of(initialize(big.parameters(PADDED), 0), given.optimizer, is_averaged=False))
    places = state_shardings(layout, specs, state)
    part, whole = 0, 0
    for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
        part += int(np.prod(place.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        whole += leaf.size * leaf.dtype.itemsize
    assert part <= 1.05 * whole / 8


@pytest.mark.parametrize(("checkpointing", "kept"), [(True, 0), ("dots", 0), (False, 2), ("save_all", 2)])
def test_a_step_moves_what_the_layout_says_and_nothing_else(checkpointing: bool | str, kept: int) -> None:
    """FSDP: weights of layers are gathered forward and backward, others once; gradients scattered, losses summed.

    Where all is kept for the backward pass, so are the two norms of a layer, which are vectors.
    """
    model = replace(LLAMA, gradient_checkpointing=checkpointing)
    program = lowered(model, (1, 8, 1))
    specs = jax.tree_util.tree_flatten_with_path(specs_of(layout_of((1, 8, 1)), model.parameters(PADDED)))[0]
    split = [path_name(path) for path, spec in specs if "data" in spec]
    layers = sum(name.startswith("blocks.") for name in split)
    text = program.as_text()
    assert text.count('"stablehlo.all_gather"') == 2 * layers - kept + len(split) - layers
    assert text.count('"stablehlo.reduce_scatter"') == len(split)
    assert text.count('"stablehlo.all_reduce"') == 2 + len(specs) - len(split)  # losses; norms of heads are whole
    if checkpointing is True:
        assert_nothing_is_exchanged(program)


def test_a_step_with_connections_exchanges_nothing_between_devices() -> None:
    """Not even to add up squares of arrays alike at once."""
    assert_nothing_is_exchanged(lowered(MUDD, (1, 8, 1)))


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (MeshConfig(axes={"date": 2}), r"found trainer.mesh.axes.date; needed replica_dcn, replica, data, model"),
        (MeshConfig(axes={"data": 0}), r"found trainer.mesh.axes.data: 0; needed 1 or more, or -1"),
        (MeshConfig(axes={"data": 3, "model": 4}), r"found trainer.mesh.axes .* on 8 devices"),
        (MeshConfig(axes={"model": 3}), r"found trainer.mesh.axes .* on 8 devices"),
        (MeshConfig(compute_mapping={"embed": "data"}), r"found trainer.mesh.compute_mapping embed: data"),
        (MeshConfig(param_mapping={"embed": "model"}), r"found trainer.mesh.param_mapping embed: model"),
        (MeshConfig(shared_mapping={"embed": "model"}), r"found trainer.mesh.shared_mapping embed: model"),
        (MeshConfig(shared_mapping={"kv_heads": None}), r"found trainer.mesh.shared_mapping kv_heads: None"),
        (MeshConfig(axes={"data": -1, "replica": -1}), r"needed at most one -1"),
        (MeshConfig(batch_axis_name="rows", compute_mapping={"batch": "data"}), r"needed rows alone"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(config: MeshConfig, found: str) -> None:
    with pytest.raises(RefusedError, match=found):
        config.layout(jax.devices())


def test_a_model_that_the_mesh_does_not_divide_is_refused_with_a_size_that_does() -> None:
    layout = layout_of((1, 1, 8))
    odd = LlamaConfig(max_seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=1, num_heads=8, num_kv_heads=4)
    with pytest.raises(RefusedError, match=r"found 4 kv_heads for trainer.mesh.axes.model: 8; .* Set it to 4"):
        specs_of(layout, odd.parameters(PADDED))


def test_parameters_that_devices_do_not_divide_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    odd = LlamaConfig(max_seq_len=16, hidden_dim=36, intermediate_dim=48, num_layers=1, num_heads=1, num_kv_heads=1)
    with caplog.at_level("WARNING"):
        specs_of(layout_of((1, 8, 1)), odd.parameters(PADDED))
    assert "100% of the parameters are whole on each of 8 devices" in caplog.text


def test_batches_that_devices_do_not_divide_are_refused_with_the_nearest_that_they_do() -> None:
    layout = layout_of((2, 4, 1))
    check_rows(layout, [8, 16], 1)
    with pytest.raises(RefusedError, match=r"found a batch of 12 rows for 8 devices .* to 8 or 16"):
        check_rows(layout, [12], None)
    with pytest.raises(RefusedError, match=r"per_device_parallelism: 4 .* 2 on each of 8 devices.* Set 2"):
        check_rows(layout, [16], 4)


def test_sizes_of_axes_follow_from_the_devices() -> None:
    assert MeshConfig(axes={"model": 2}).sizes(8) == {"replica_dcn": 1, "replica": 1, "data": 4, "model": 2}
    assert MeshConfig(axes={"data": 2}).sizes(8)["data"] == 2
    assert MeshConfig(axes={"replica": -1}).sizes(8) == {"replica_dcn": 1, "replica": 8, "data": 1, "model": 1}
    written_out = MeshConfig(axes={"data": -1, "replica": 1, "model": 1}, dcn_axes={"replica_dcn": -1})
    assert written_out.sizes(8) == {
        "replica_dcn": 1,
        "replica": 1,
        "data": 8,
        "model": 1,
    }  # as in Levanter: of one slice
    assert MeshConfig(dcn_axes={"replica_dcn": 2}).sizes(8) == {"replica_dcn": 2, "replica": 1, "data": 4, "model": 1}
    assert MeshConfig().layout(jax.devices()) is None  # CPUs are split only where it is asked for
    layout = MeshConfig(axes={"model": 2}, shared_mapping={"vocab": None}).layout(jax.devices())
    assert layout is not None
    assert (layout.row_parts, layout.tensor_parts, layout.tensor) == (4, 2, {"heads", "kv_heads", "mlp"})


def assert_nothing_is_exchanged(program: Any) -> None:
    compiled = program.compile().as_text()
    assert "all-to-all" not in compiled and "collective-permute" not in compiled


def lowered(model: LmConfig, shape: tuple[int, int, int]) -> Any:
    layout = layout_of(shape)
    specs = specs_of(layout, model.parameters(PADDED))
    given = settings(layout=layout, specs=specs)
    state = state_of(initialize(model.parameters(PADDED), 0), given.optimizer, is_averaged=False)
    placed = jax.device_put(state, state_shardings(layout, specs, state))
    return TrainStep(given).lower(placed, jax.device_put(batch(), layout.sharding(layout.batch_spec)))


def assert_equal_steps(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for name in ("loss", "cross_entropy", "weight", "grad_norm"):
        np.testing.assert_allclose(getattr(found[1], name), getattr(expected[1], name), rtol=1e-5)
    one, other = (named_arrays(state.optimizer) for state, _ in (found, expected))
    largest = max(float(np.abs(gradient).max()) for gradient in other.values())
    for name, gradient in other.items():
        near = 3e-5 * float(np.abs(gradient).max()) + 1e-9 * largest  # some gradients are 0 but for rounding
        np.testing.assert_allclose(one[name], gradient, atol=near, rtol=0, err_msg=name)


def test_a_mesh_that_leaves_a_process_without_devices_is_refused() -> None:
    devices: Any = [SimpleNamespace(platform="gpu", process_index=number // 4) for number in range(8)]
    with pytest.raises(RefusedError, match=r"found a mesh of 4 of 8 devices, which leaves process 1 none"):
        MeshConfig(axes={"data": 4}).layout(devices)
