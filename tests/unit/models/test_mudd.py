"""Connections over depth: what a model with them is at first, what its keys leave out, and what it costs.

tests/parity/test_mudd_reference.py has what they compute.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learnt import first_values

from ponente.config.errors import RefusedError
from ponente.models.lm import KeyValues, Tokens, logits
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import abstract, count, initialize
from ponente.ops import mixing_kernel, weighing_kernel
from ponente.train.state import named_arrays

VOCABULARY = 20
SIZES: dict[str, Any] = {"max_seq_len": 8, "hidden_dim": 16, "intermediate_dim": 32, "num_layers": 2, "num_heads": 2}
MUDD, PYTHIA = MuddConfig(**SIZES), MuddPythiaConfig(**SIZES)
NORMS = {"mudd_prenorm": True, "mudd_postnorm": True}
ABLATIONS: dict[str, dict[str, Any]] = {
    "four ways": {},
    "norms": NORMS,
    "norm before": {"mudd_prenorm": True},
    "norm behind": {"mudd_postnorm": True},
    "one way": {"dynamic_dense_type": "l"},
    "one way with norms": {"dynamic_dense_type": "l", **NORMS},
    "two ways": {"dynamic_dense_type": "km"},
    "no residual": {"dynamic_dense_type": "qkv"},
    "no residual with norms": {"dynamic_dense_type": "qkv", **NORMS},
    "static": {"mudd_dynamic": False},
    "dynamic": {"mudd_static": False},
    "every second": {"mudd_dilation": 2, "mudd_period": 2},
    "four ways behind the last": {"dynamic_dense_fix_last_layer": False},
    "another activation": {"dynamic_dense_act_cls": "silu"},
}
families = pytest.mark.parametrize("config", [MUDD, PYTHIA], ids=["mudd", "mudd_pythia"])
IDS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, 8)))


def made(config: Any) -> Any:
    return initialize(config.parameters(VOCABULARY), 0)


def hidden(model: Any) -> Any:
    return model.hidden(Tokens.plain(IDS))


@cache
def exact(config: Any) -> Any:
    """At first, one operation at a time: a compiler may add in another order."""
    with jax.disable_jit():
        return hidden(made(config))


@pytest.mark.parametrize(
    ("config", "keys"),
    [(MUDD, keys) for keys in ABLATIONS.values()]
    + [(PYTHIA, ABLATIONS[name]) for name in ("norms", "one way", "two ways")],
)
def test_at_first_a_model_is_that_without_connections_bit_for_bit(config: Any, keys: dict[str, Any]) -> None:
    np.testing.assert_array_equal(exact(replace(config, **keys)), exact(replace(config, dense_conn=False)))


def test_norms_of_queries_and_keys_stay_those_of_the_layers() -> None:
    config = replace(MUDD, use_qk_norm=True)
    np.testing.assert_array_equal(exact(config), exact(replace(config, dense_conn=False)))
    assert not np.array_equal(exact(config), exact(MUDD))


@pytest.mark.parametrize(
    ("layers", "width", "expected"), [(24, 1024, 2_355_269), (24, 2048, 4_583_493), (32, 2560, 8_775_709)]
)
@pytest.mark.parametrize("family", [MuddConfig, MuddPythiaConfig])
def test_weighing_networks_have_the_paper_s_number_of_parameters(
    family: Any, layers: int, width: int, expected: int
) -> None:
    config = family(num_layers=layers, hidden_dim=width, num_heads=16)
    found, extra = config.parameters(50_432), 0
    for connection in found.connections:
        extra += sum(map(count, (connection.w_in_DI, connection.w_out_ICM, connection.static_CM)))
    assert extra == expected
    norms = layers + 1 + layers + (2 * layers * (2 if family is MuddPythiaConfig else 1))  # before, behind, of q k v
    baseline = replace(config, dense_conn=False).parameters(50_432)
    assert count(found) - count(baseline) == extra + norms * width


def test_mlps_that_grow_with_depth_have_the_paper_s_widths() -> None:
    config = MuddConfig(num_layers=24, hidden_dim=1024, intermediate_dim=2816, num_heads=16, dynamic_mlp_dim=True)
    widths = [mlp.w_up_DF.shape[1] for mlp in config.parameters(64).mlps]
    assert (widths[0], widths[12], widths[-1], sum(widths)) == (1408, 2816, 4224, 67_584)
    assert widths == sorted(widths) and all(width % 128 == 0 for width in widths)
    narrow = replace(config, intermediate_dim=128, num_layers=3)
    assert narrow.mlp_widths == (128, 128, 256), "no layer is left without an MLP"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dynamic_dense_type": "mk"}, "found dynamic_dense_type: 'mk'; needed some of the ways qkvm, in this order"),
        ({"dynamic_dense_type": ""}, "found dynamic_dense_type: ''; .* or l for one mixture that all ways take"),
        ({"dynamic_dense_type": "ql"}, "found dynamic_dense_type: 'ql'"),
        (
            {"dynamic_dense_hidden_expand": (1, 4, 1)},
            r"found dynamic_dense_hidden_expand: \[1, 4, 1\]; needed 2 numbers",
        ),
        ({"dynamic_dense_hidden_expand": (0, 4)}, r"\[0, 4\]; needed 2 numbers, .* all 1 or more"),
        ({"mudd_dilation": 0}, "found mudd_dilation: 0; needed 1"),
        ({"mudd_dilation": 100}, "found mudd_dilation: 100, .* for 2 layers, .* needed a mixture of two"),
        ({"mudd_dilation": 2, "dynamic_dense_type": "qkv"}, "found mudd_dilation: 2, .* needed a mixture of two"),
        ({"mudd_period": 2, "dynamic_dense_type": "k"}, "mudd_period: 2 and dynamic_dense_type: 'k' .* of two"),
        ({"num_layers": 1, "dynamic_dense_type": "v"}, "for 1 layers, .* needed a mixture of two"),
        ({"mudd_period": 0}, "found mudd_period: 0; needed 1"),
        (
            {"mudd_static": False, "mudd_dynamic": False},
            "mudd_dynamic: false; needed one of them, .* dense_conn: false",
        ),
        ({"dynamic_mlp_dim": True, "dense_conn": False}, "found dynamic_mlp_dim: true with dense_conn: false"),
        ({"scan_layers": True}, "found scan_layers: true .* Set scan_layers: false"),
        ({"num_heads": 3}, "found hidden_dim: 16 and num_heads: 3"),  # the layers' own
    ],
)
@families
def test_keys_that_do_not_go_together_are_refused(config: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        replace(config, **keys)


def test_layers_without_connections_may_be_scanned() -> None:
    assert type(replace(MUDD, dense_conn=False, scan_layers=True).parameters(VOCABULARY)).__name__ == "Llama"


def shapes(**keys: Any) -> list[tuple[int, ...] | None]:
    """Of the weights that each connection of five layers gives to the states, for all ways."""
    connections = replace(MUDD, num_layers=5, **keys).parameters(VOCABULARY).connections
    return [None if one.w_out_ICM is None else one.w_out_ICM.shape[1:] for one in connections]


def test_what_is_left_out_has_no_weights() -> None:
    assert shapes() == [(4, 2), (4, 3), (4, 4), (4, 5), (1, 6)]
    assert shapes(dynamic_dense_type="l") == [(1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]
    assert shapes(dynamic_dense_type="km") == [(2, 2), (2, 3), (2, 4), (2, 5), (1, 6)]
    assert shapes(dynamic_dense_type="qkv") == [(3, 2), (3, 3), (3, 4), (3, 5), None]
    assert shapes(dynamic_dense_fix_last_layer=False)[-1] == (4, 6)
    assert shapes(mudd_period=2) == [None, (4, 3), None, (4, 5), (1, 6)]
    assert shapes(mudd_dilation=2) == [(4, 1), (4, 2), (4, 2), (4, 3), (1, 3)]
    deep = replace(MUDD, num_layers=5)
    assert [deep.sources(3), replace(deep, mudd_dilation=2).sources(3)] == [(0, 1, 2, 3), (1, 3)]
    assert shapes(mudd_dynamic=False) == [None] * 5
    static = replace(MUDD, mudd_dynamic=False).parameters(VOCABULARY).connections
    assert [one.static_CM.shape for one in static] == [(4, 2), (1, 3)]
    dynamic = replace(MUDD, mudd_static=False).parameters(VOCABULARY).connections
    assert [one.static_CM for one in dynamic] == [None] * 2
    for ways, last_is_mixed in (("qkv", False), ("km", True), ("l", True)):
        normed = replace(MUDD, **NORMS, dynamic_dense_type=ways).parameters(VOCABULARY).connections
        assert [one.norm_state_D is not None for one in normed] == [True, last_is_mixed]
    sparse = replace(MUDD, **NORMS, num_layers=4, mudd_period=2, mudd_dilation=2).parameters(VOCABULARY)
    normed = sparse.norm_state_D, *(one.norm_state_D for one in sparse.connections)
    assert [norm is not None for norm in normed] == [True, False, True, False, True]  # those that are mixed


def test_inner_widths_are_those_of_the_release() -> None:
    def widths(**keys: Any) -> list[int]:
        connections = MuddConfig(num_layers=24, hidden_dim=64, num_heads=2, **keys).parameters(VOCABULARY).connections
        return [one.w_in_DI.shape[1] for one in connections]

    assert widths() == [64] * 14 + [128] * 10  # (4 · 16) // 64 + 1 = 2, and of the last (4 · 25) // 64 + 1
    assert widths(dynamic_dense_hidden_round=False)[-3:] == [4 * 23, 4 * 24, 4 * 25]
    assert widths(dynamic_dense_hidden_expand=(2,) * 23 + (1,), dynamic_dense_hidden_round=False)[-2:] == [2 * 96, 25]


@families
def test_networks_begin_with_variance_of_one_over_the_width_and_norms_behind_mixtures_small(config: Any) -> None:
    connection = made(replace(config, **NORMS, hidden_dim=64, dynamic_dense_hidden_expand=(1, 8))).connections[1]
    assert connection.w_in_DI.std() * 64**0.5 == pytest.approx(1, abs=0.05)
    assert not np.any(connection.w_out_ICM) and not np.any(connection.static_CM)
    np.testing.assert_array_equal(connection.norm_after_D, np.float32(1e-3))
    np.testing.assert_array_equal(connection.norm_state_D, np.float32(1))


def test_norms_are_there_from_twenty_layers_on_unless_told() -> None:
    for layers, keys, expected in ((19, {}, False), (20, {}, True), (20, dict.fromkeys(NORMS, False), False)):
        model = replace(MUDD, num_layers=layers, **keys).parameters(VOCABULARY)
        first = model.connections[0]
        assert [one is not None for one in (model.norm_state_D, first.norm_state_D, first.norm_after_D)] == [
            expected
        ] * 3


@pytest.mark.parametrize(("config", "keys"), [(MUDD, NORMS), (PYTHIA, {})], ids=["mudd", "mudd_pythia"])
def test_what_is_kept_for_the_backward_pass_grows_with_depth_and_not_with_its_square(
    config: Any, keys: dict[str, Any]
) -> None:
    def kept(layers: int) -> int:
        deep = abstract(replace(config, num_layers=layers, **keys).parameters(VOCABULARY))
        pulled = jax.eval_shape(lambda model: jax.vjp(hidden, model)[1], deep)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(pulled) if leaf.shape[:2] == IDS.shape)

    first, second, third = kept(2), kept(3), kept(5)
    assert third - second == 2 * (second - first) > 0


def test_what_a_compiled_program_needs_grows_with_depth_and_not_with_its_square() -> None:
    def needed(layers: int) -> int:
        deep = replace(MUDD, **NORMS, num_layers=layers, dynamic_dense_type="l").parameters(VOCABULARY)
        lowered = jax.jit(jax.grad(lambda model: jnp.sum(hidden(model)))).lower(abstract(deep))
        found: int = lowered.compile({"xla_backend_optimization_level": 0}).memory_analysis().temp_size_in_bytes
        return found

    first, second, third = needed(12), needed(24), needed(48)
    assert (
        0 < third - second < 2.4 * (second - first)
    )  # 2, but for networks, which weigh more states; with a square near 4


@pytest.mark.parametrize("ways", ["qkvm", pytest.param("qkv", marks=pytest.mark.soak)])
def test_a_compiled_model_begins_as_that_without_connections_and_all_of_it_learns_after_one_step(ways: str) -> None:
    """At first the networks' outputs are 0, and so nothing that is before those learns."""
    config = replace(MUDD, **NORMS, dynamic_dense_type=ways, initializer_range=0.1, gradient_checkpointing=False)

    def loss(model: Any) -> tuple[Any, Any]:
        found = hidden(model)
        return jnp.mean(jax.nn.log_softmax(logits(model, found))[..., 3]), found

    gradients, model = jax.jit(jax.grad(loss, has_aux=True)), made(config)
    first, found = gradients(model)
    np.testing.assert_allclose(found, exact(replace(config, dense_conn=False)), rtol=0, atol=1e-6)
    zero = {name for name, array in named_arrays(first).items() if not np.any(array)}
    before = {"w_in_DI", "norm_state_D", "norm_after_D"}
    assert zero == {name for name in named_arrays(model) if name.split(".")[-1] in before}
    assert len(zero) == (3 * 2 + 1 if "m" in ways else 2 + 1)
    then, _ = gradients(jax.tree.map(lambda one, by: one - 0.1 * by, model, first))
    assert {name for name, array in named_arrays(then).items() if not np.any(array)} == set()


def of_mlps(config: Any) -> int:
    """How many weights are in their products."""
    products = {"w_gate_DF", "w_up_DF", "w_down_FD"}
    return sum(one.size for name, one in named_arrays(made(config)).items() if name.split(".")[-1] in products)


@families
@pytest.mark.parametrize(
    "keys",
    [{}, {"dynamic_dense_type": "km", "mudd_period": 2, "mudd_dilation": 2}, {"dynamic_mlp_dim": True}],
)
def test_operations_of_connections_are_those_of_their_formula(config: Any, keys: dict[str, Any]) -> None:
    deep = replace(config, num_layers=5, **keys)
    width, products = deep.hidden_dim, 0
    for connection in deep.parameters(VOCABULARY).connections:
        if connection.w_out_ICM is not None:
            inner, ways, states = connection.w_out_ICM.shape
            products += width * inner + inner * ways * states + ways * states * width
    plain = replace(deep, dense_conn=False, dynamic_mlp_dim=False)
    products += of_mlps(deep) - of_mlps(plain)
    of_layers = plain.flops_per_token(8, VOCABULARY)
    assert deep.flops_per_token(8, VOCABULARY) - of_layers == 6 * products > 0


@pytest.mark.parametrize("keys", ABLATIONS.values(), ids=list(ABLATIONS))
@pytest.mark.parametrize("family", [MuddConfig, MuddPythiaConfig])
def test_kernels_decode_what_a_whole_pass_has(
    family: Any, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = family(**SIZES | {"num_layers": 3}, gradient_checkpointing=False, **keys)
    random = np.random.default_rng(1)
    model = jax.tree.map(  # norms that are not 1, or it would not show which of them is taken
        lambda one: one * np.float32(random.uniform(0.5, 1.5, one.shape)), first_values(config, VOCABULARY)
    )
    ids = np.arange(10).reshape(2, 5) % 8
    expected = model.hidden(Tokens.plain(ids))
    calls: list[str] = []

    def interpreted(name: str, kernel: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            calls.append(name)
            return kernel(*given, **options, is_interpreted=True)

        return call

    for module, name in ((weighing_kernel, "weigh_inside"), (mixing_kernel, "mixed")):
        monkeypatch.setattr(module, name, interpreted(name, getattr(module, name)))
    for op in ("weighing", "mixing"):
        monkeypatch.setattr(f"ponente.ops.{op}.has_triton", lambda: True)
    past, found = KeyValues.empty(config, 2, 8, np.dtype(np.float32)), []
    for start, stop in ((0, 3), (3, 4), (4, 5)):
        positions = np.broadcast_to(np.arange(start, stop), (2, stop - start))
        some, past = model.extend(replace(Tokens.plain(ids[:, start:stop]), positions_BS=positions), past)
        found.append(some)
    assert "mixed" in calls and ("weigh_inside" in calls) == config.mudd_dynamic
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-4, atol=1e-4)
