"""Kernels for GPUs, interpreted on the CPU, against plain formulas; tests/gpu runs them for real."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.models.lm import Tokens
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import is_parameter
from ponente.ops.gated import swiglu_gradients_plain
from ponente.ops.gated_kernel import swiglu_again, swiglu_gradients
from ponente.ops.linear import linear_each
from ponente.ops.linear_kernel import has_kernel as has_product_kernel
from ponente.ops.linear_kernel import products_of_few
from ponente.ops.loss_kernel import log_normalizer
from ponente.ops.mixing import ALONE, Mixed, Mixture, Turn, Way, mix, mix_for_good, mix_plain, together
from ponente.ops.mixing_gradients_kernel import mixed_gradients
from ponente.ops.mixing_kernel import has_kernel as has_mixing_kernel
from ponente.ops.mixing_kernel import mixed
from ponente.ops.norm import Term, rms_norm, rms_norm_beside, with_term
from ponente.ops.norm_kernel import has_kernel, rms_norm_gradients
from ponente.ops.weighing import Network, Unweighed, gelu, weigh, weigh_and_mix, weigh_unnormed
from ponente.ops.weighing_kernel import has_kernel as has_weighing_kernel
from ponente.ops.weighing_kernel import weigh_inside


@pytest.mark.parametrize("shape", [(4, 2048), (3, 512), (3, 7, 5)])
def test_the_gate_s_gradients_are_those_of_autodiff(shape: tuple[int, ...]) -> None:
    gate, up, by = (3 * jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3))
    expected = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)[1](by)
    for found in (swiglu_gradients(gate, up, by, is_interpreted=True), swiglu_gradients_plain(gate, up, by)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    hidden, *gradients = swiglu_again(gate, up, by, is_interpreted=True)
    np.testing.assert_allclose(hidden, jax.nn.silu(gate) * up, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 32, 128), (3, 4, 96), (40, 1000)])
@pytest.mark.parametrize("users", [1, 2])
def test_the_norm_s_gradients_are_those_of_autodiff(shape: tuple[int, ...], users: int) -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    x, by_x, *by_normed = (jax.random.normal(key, shape) * 3 for key in keys[: 2 + users])
    weight = 1 + jax.random.normal(keys[4], shape[-1:])
    assert has_kernel(x)
    term = Term(jnp.cos(x), jnp.sin(weight))
    expected_by_x, by_weight = jax.vjp(lambda x, weight: rms_norm(x, weight, 1e-5), x, weight)[1](sum(by_normed))
    expected_by_x += by_x
    by_term = jnp.sum(expected_by_x * term.unit, axis=tuple(range(x.ndim - 1)))
    for given, expected in ((None, None), (term, Term(jnp.zeros_like(x), by_term))):
        found = rms_norm_gradients(x, weight, tuple(by_normed), by_x, 1e-5, given, is_interpreted=True)
        made = jax.tree.leaves((expected_by_x, by_weight, expected))
        for one, other in zip(jax.tree.leaves(found), made, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 32, 128), (3, 7, 64)])  # the second is not for the kernel
def test_a_norm_beside_its_input_has_the_gradients_of_both(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponente.ops.norm.has_triton", lambda: True)
    kernel = partial(rms_norm_gradients, is_interpreted=True)
    monkeypatch.setattr("ponente.ops.norm_kernel.rms_norm_gradients", kernel)
    x, weight = jax.random.normal(jax.random.key(0), shape), jnp.linspace(0.5, 2, shape[-1])

    def loss(norm: Any) -> Any:
        def value(x: jax.Array, weight: jax.Array) -> jax.Array:
            normed, past = norm(x, weight, 1e-5)
            return jnp.sum(2 * jnp.cos(past) + jnp.sin(normed))

        return jax.value_and_grad(value, argnums=(0, 1))(x, weight)

    found, expected = loss(rms_norm_beside), loss(lambda x, *rest: (rms_norm(x, *rest), x))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 7, 64), (64, 8200)])
def test_odd_and_wide_rows_are_not_for_the_norm_s_kernel(shape: tuple[int, ...]) -> None:
    assert not has_kernel(jnp.zeros(shape))


@pytest.mark.parametrize("vocabulary", [5, 2048, 5003])
@pytest.mark.parametrize("unused", [0, 3])
def test_the_normalizer_of_a_row_is_that_of_logsumexp(vocabulary: int, unused: int) -> None:
    logits = 20 * jax.random.normal(jax.random.key(0), (3, vocabulary)) + jnp.array([[-500.0], [0.0], [1e6]])
    found = log_normalizer(with_unused(logits, unused), vocabulary, is_interpreted=True)
    np.testing.assert_allclose(found, jax.nn.logsumexp(logits, axis=-1), rtol=1e-6)


def with_unused(logits: jax.Array, columns: int) -> jax.Array:
    """With columns behind that stand for no id, and would be seen in any sum."""
    return jnp.pad(logits, ((0, 0), (0, columns)), constant_values=1e7)


PLAIN, NORMED, ADDED, BOTH = Way(), Way(is_normed=True), Way(has_base=True), Way(has_base=True, is_normed=True)
BEHIND = Way(is_normed=True, is_behind=True)
MIXTURES = {
    "four ways": ([(NORMED, NORMED, NORMED, PLAIN)] * 2, 3, (1, 3, 300), together([4, 4], ends=True)),
    "three ways beside the last state": ([(BOTH, BOTH, BEHIND)] * 2, 2, (2, 3, 512), (ALONE, Turn(begins=True))),
    "two ways beside it": ([(ADDED, BEHIND)] * 3, 1, (2, 33), together([2, 2, 2], ends=True)),
    "two ways before others": (
        [(ADDED, BEHIND)] * 4, 2, (2, 33), (*together([2, 2, 2], ends=False), Turn(begins=True)),
    ),
    "four ways, and one behind the last layer": (
        [(BOTH, BOTH, BOTH, BEHIND)] * 2 + [(BEHIND,)], 2, (2, 33), together([4, 4, 1], ends=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("parts", ["norm and static", "norm", "static", "neither"])
@pytest.mark.parametrize(
    ("rows", "width", "inner", "count"),
    [((1, 1), 2048, 128, 3), ((3, 2), 96, 20, 34), ((2, 1), 768, 64, 1), ((1, 2), 1000, 7, 5), ((1, 1), 640, 300, 2)],
)
def test_a_few_tokens_are_weighed_and_mixed_as_by_the_plain_network(
    rows: tuple[int, int], width: int, inner: int, count: int, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    network = Network(
        norm_D=1 + numbers(width) if "norm" in parts else None,
        w_in_DI=numbers(width, inner) / width**0.5,
        w_out_ICM=numbers(inner, 4, count) / inner**0.5,
        static_CM=numbers(4, count) if "static" in parts else None,
    )
    x, earlier = 3 * numbers(*rows, width), tuple(numbers(*rows, width) for _ in range(count - 1))
    ways, norms = (BOTH, NORMED, PLAIN, BEHIND), (numbers(width), None, numbers(width), None)
    mixture = Unweighed(x, earlier, numbers(width))
    assert has_weighing_kernel(x, network) and not has_weighing_kernel(numbers(65, 1, width), network)
    weighed = weigh(x, network, gelu, 1e-5)
    whole = Mixture(weighed.weights_BSCM, (*earlier, weighed.last_BSD), x, mixture.after_D)
    expected = weighed.last_BSD, *mix_plain(whole, ways, 1e-5, norms)
    plain_last, plain = weigh_and_mix(mixture, network, gelu, ways, 1e-5, norms)
    monkeypatch.setattr("ponente.ops.weighing.has_triton", lambda: True)
    monkeypatch.setattr("ponente.ops.weighing_kernel.weigh_inside", partial(weigh_inside, is_interpreted=True))
    monkeypatch.setattr("ponente.ops.mixing_kernel.mixed", partial(mixed, is_interpreted=True))
    last, streams = weigh_and_mix(mixture, network, gelu, ways, 1e-5, norms)
    made = str(jax.make_jaxpr(lambda *given: weigh_and_mix(*given, gelu, ways, 1e-5, norms))(mixture, network))
    assert "weighed_inside" in made and f"mixed_{count}" in made
    for found in ((plain_last, *plain), (last, *streams)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("rows", [(1, 1), (3, 2), (16, 1)])
def test_products_of_a_few_rows_and_their_gradients_are_those_of_each(
    rows: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    xs = tuple(jax.random.normal(key, (*rows, 512), jnp.bfloat16) for key in keys[:3])
    shapes = (512, 4, 64), (512, 128), (512, 2, 64)
    each = zip(keys[3:], shapes, strict=True)
    weights = tuple((jax.random.normal(key, shape) / 512**0.5).astype(jnp.bfloat16) for key, shape in each)
    assert has_product_kernel(xs, weights)
    assert not has_product_kernel((jnp.zeros((17, 1, 512), jnp.bfloat16),) * 3, weights)
    assert not has_product_kernel(tuple(x.astype(jnp.float32) for x in xs), weights)

    def value_and_gradients() -> Any:
        value, pull = jax.vjp(linear_each, xs, weights)
        return value, pull(jax.tree.map(jnp.cos, value))

    expected = value_and_gradients()
    kernel = partial(products_of_few, is_interpreted=True)
    monkeypatch.setattr("ponente.ops.linear.has_triton", lambda: True)
    monkeypatch.setattr("ponente.ops.linear_kernel.products_of_few", kernel)
    assert "products_of_few" in str(jax.make_jaxpr(linear_each)(xs, weights))
    for one, other in zip(jax.tree.leaves(value_and_gradients()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), rtol=0.02, atol=0.02)


def test_streams_are_multiplied_with_weights_where_no_gradient_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    mixture = Mixture(numbers(2, 3, 4, 5), tuple(numbers(2, 3, 96) for _ in range(5)), numbers(2, 3, 96), numbers(96))
    ways, norms = (BOTH, NORMED, PLAIN, BEHIND), (numbers(96), None, numbers(96), None)
    plain = mix_for_good(mixture, ways, 1e-5, norms)
    for stream, bare, norm in zip(plain, mix_plain(mixture, ways, 1e-5), norms, strict=True):
        np.testing.assert_allclose(stream, bare if norm is None else bare * norm, rtol=1e-6)
    monkeypatch.setattr("ponente.ops.mixing.has_triton", lambda: True)
    monkeypatch.setattr("ponente.ops.mixing_kernel.mixed", partial(mixed, is_interpreted=True))
    for found, expected in zip(mix_for_good(mixture, ways, 1e-5, norms), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 32, 128), (3, 7, 64)])
@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("is_on_gpu", [True, False])
def test_a_norm_beside_its_input_makes_the_gradient_of_its_term(
    shape: tuple[int, ...], has_weight: bool, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponente.ops.norm.has_triton", lambda: is_on_gpu)
    kernel = partial(rms_norm_gradients, is_interpreted=True)
    monkeypatch.setattr("ponente.ops.norm_kernel.rms_norm_gradients", kernel)
    rest, unit = (jax.random.normal(jax.random.key(seed), shape) for seed in (0, 1))
    weight, after = jnp.linspace(0.5, 2, shape[-1]) if has_weight else None, jnp.linspace(-1, 1, shape[-1])

    def gradients(makes_term: bool) -> Any:
        def value(after: jax.Array, rest: jax.Array) -> jax.Array:
            x = rest + unit * (jax.lax.stop_gradient(after) if makes_term else after)
            term = Term(unit, after) if makes_term else None
            normed, past = rms_norm_beside(x, weight, 1e-5, term)
            return jnp.sum(jnp.cos(past) + jnp.sin(normed))

        return jax.grad(value, argnums=(0, 1))(after, rest)

    for one, other in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("ways_of_each", "count", "shape", "turns"), MIXTURES.values(), ids=list(MIXTURES))
def test_mixtures_and_their_gradients_are_those_of_the_formula(
    ways_of_each: list[tuple[Way, ...]],
    count: int,
    shape: tuple[int, ...],
    turns: tuple[Turn, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of some in a row, as in a model: each has one state more than the last, and may leave gradients to the first."""
    interpret_mixtures(monkeypatch)
    random = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    weights = [numbers(*shape[:-1], len(ways), count + later) for later, ways in enumerate(ways_of_each)]
    states = tuple(numbers(*shape) for _ in range(count))
    has_after = any(BEHIND in ways for ways in ways_of_each)
    has_base = has_after or any(way.has_base for ways in ways_of_each for way in ways)
    base, after = numbers(*shape) if has_base else None, numbers(shape[-1]) if has_after else None
    assert has_mixing_kernel(states[0])

    def value_and_gradients(mixed: Any, leaves_after: bool = False) -> Any:
        def taken(made: Mixed, ways: tuple[Way, ...], after: Any) -> tuple[Any, ...]:
            if made.unit_BSD is None:
                return made.streams
            term = Term(made.unit_BSD, after)
            return tuple(
                with_term(one, term) if way is BEHIND else one for one, way in zip(made.streams, ways, strict=True)
            )

        def total(weights: Any, states: Any, base: Any, after: Any) -> Any:
            streams, debts = [], ()
            for turn, ways, each in zip(turns, ways_of_each, weights, strict=True):
                mixture = Mixture(each, states, base, after)
                made = mixed(mixture, ways, 1e-5, debts, replace(turn, leaves_after=leaves_after))
                streams += taken(made, ways, after)
                states, debts = (*made.states, jnp.sin(streams[-1])), made.debts
            return streams

        @jax.jit
        def both(*given: Any) -> Any:
            value, pull = jax.vjp(total, *given)
            return value, pull([jnp.cos(stream + number) for number, stream in enumerate(value)])

        return both(weights, states, base, after)

    expected = value_and_gradients(
        lambda mixture, ways, epsilon, *_: Mixed(mix_plain(mixture, ways, epsilon), mixture.states)
    )
    for leaves_after in {False, has_after}:
        found = value_and_gradients(mix, leaves_after)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("has_static", [True, False])
@pytest.mark.parametrize("earlier", [0, 2])
def test_the_last_state_may_be_normed_where_it_is_mixed(
    earlier: int, has_static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret_mixtures(monkeypatch)
    random = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    ways, (rows, width), inner = (BOTH, BEHIND), (6, 40), 12
    network = Network(
        norm_D=1 + numbers(width),
        w_in_DI=numbers(width, inner) / width**0.5,
        w_out_ICM=numbers(inner, len(ways), earlier + 1) / inner,
        static_CM=numbers(len(ways), earlier + 1) if has_static else None,
    )
    given = numbers(2, rows, width), tuple(numbers(2, rows, width) for _ in range(earlier)), network, numbers(width)

    def value_and_gradients(weigh: Any, mixed: Any) -> Any:
        def total(x: Any, states: Any, network: Any, after: Any) -> Any:
            weighed = weigh(x, network, gelu, 1e-5)
            mixture = Mixture(weighed.weights_BSCM, (*states, weighed.last_BSD), weighed.x_BSD, after, weighed.norm)
            made = mixed(mixture, ways, 1e-5)
            return (*made.streams, *made.states)

        value, pull = jax.vjp(total, *given)
        return value, pull(tuple(jnp.cos(stream + number) for number, stream in enumerate(value)))

    expected = value_and_gradients(weigh, lambda mixture, *rest: Mixed(mix_plain(mixture, *rest), mixture.states))
    found = value_and_gradients(weigh_unnormed, mix)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


def interpret_mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponente.ops.mixing.has_triton", lambda: True)
    for name, kernel in (("mixing_kernel.mixed", mixed), ("mixing_gradients_kernel.mixed_gradients", mixed_gradients)):
        monkeypatch.setattr(f"ponente.ops.{name}", partial(kernel, is_interpreted=True))


@pytest.mark.parametrize("family", [MuddConfig, MuddPythiaConfig])
def test_a_model_s_gradients_are_the_same_whoever_makes_those_of_weights_behind_norms(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = family(
        max_seq_len=4, hidden_dim=16, intermediate_dim=16, num_layers=2, num_heads=2, mudd_prenorm=True,
        mudd_postnorm=True, dynamic_dense_type="qm", dynamic_dense_hidden_round=False, gradient_checkpointing=False,
    )  # fmt: skip
    random = np.random.default_rng(0)
    model = jax.tree.map(
        lambda one: np.float32(random.normal(one.mean, 0.3, one.shape)), config.parameters(8), is_leaf=is_parameter
    )
    tokens = Tokens.plain(jnp.arange(8).reshape(2, 4))

    def gradients() -> Any:
        return jax.jit(jax.grad(lambda model: jnp.sum(jnp.sin(model.hidden(tokens)))))(model)

    expected = gradients()
    interpret_mixtures(monkeypatch)
    monkeypatch.setattr("ponente.ops.norm.has_triton", lambda: True)
    kernel, with_terms = partial(rms_norm_gradients, is_interpreted=True), list[bool]()

    def norm_gradients(*given: Any) -> Any:
        with_terms.append(given[-1] is not None)
        return kernel(*given)

    monkeypatch.setattr("ponente.ops.norm_kernel.rms_norm_gradients", norm_gradients)
    found = gradients()
    assert any(with_terms) == (family is MuddConfig)  # the other has no such norm behind its residuals
    assert float(jnp.abs(found.connections[0].norm_after_D).max()) > 0
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


@pytest.mark.parametrize("ways", ["qkvm", pytest.param("l", marks=pytest.mark.soak)])
def test_a_model_s_gradients_are_the_same_whoever_makes_those_of_its_mixtures(
    ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first four layers are mixtures alone, and the last two leave their gradients to that before them."""
    config = MuddConfig(
        max_seq_len=4, hidden_dim=16, intermediate_dim=16, num_layers=6, num_heads=2, mudd_prenorm=True,
        mudd_postnorm=True, dynamic_dense_type=ways, dynamic_dense_hidden_round=False, gradient_checkpointing=False,
    )  # fmt: skip
    assert [config.turn(number).own for number in range(1, 7)] == [None, None, None, None, 1, 2]
    random = np.random.default_rng(0)
    model = jax.tree.map(
        lambda one: np.float32(random.normal(one.mean, 0.3, one.shape)), config.parameters(8), is_leaf=is_parameter
    )
    tokens = Tokens.plain(jnp.arange(8).reshape(2, 4))

    def gradients() -> Any:
        return jax.jit(jax.grad(lambda model: jnp.sum(jnp.sin(model.hidden(tokens)))))(model)

    expected = gradients()
    interpret_mixtures(monkeypatch)
    for one, other in zip(jax.tree.leaves(gradients()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())


def test_states_that_the_kernel_does_not_take_are_mixed_otherwise_and_that_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ponente.ops.mixing.has_triton", lambda: True)
    wide = jnp.ones((1, 2, 4097))
    mixture = Mixture(jnp.full((1, 2, 1, 2), 0.5), (wide, wide), None, None)
    for _ in range(2):
        (stream,) = mix(mixture, (Way(),), 1e-6).streams
        np.testing.assert_array_equal(stream, wide)
    assert caplog.text.count("mixtures of states (1, 2, 4097): XLA's, which are slower") == 1
