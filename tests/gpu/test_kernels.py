"""The kernels that only a GPU runs, against plain formulas in float32 (make test-gpu).

Inputs are bfloat16, with 8 bits of precision: 0.01 of the largest value is what rounding of inputs and outputs makes.
"""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.batches.tables import tables_of
from ponente.ops import cudnn
from ponente.ops.attention import Mask, attend, takes_tables
from ponente.ops.embedding import lookup
from ponente.ops.fp8 import fp8_product
from ponente.ops.gated import gated, linear_of_gated
from ponente.ops.linear import linear_each
from ponente.ops.linear_kernel import has_kernel as has_product_kernel
from ponente.ops.loss import cross_entropy_sums
from ponente.ops.mixing import ALONE, Mixed, Mixture, Turn, Way, mix, mix_for_good, mix_plain, together
from ponente.ops.mixing_kernel import has_kernel as has_mixing_kernel
from ponente.ops.norm import Term, rms_norm, rms_norm_beside
from ponente.ops.weighing import Network, Unweighed, Weighed, gelu, weigh, weigh_and_mix, weigh_unnormed
from ponente.ops.weighing_kernel import has_kernel as has_weighing_kernel

ROUNDING = 0.01
BETWEEN = 2**-7  # two numbers of 16 bits that follow each other, of numbers of their size
ROWS, LENGTH, SIZE = 4, 256, 64
NORMED, BESIDE, BEHIND = Way(is_normed=True), Way(has_base=True, is_normed=True), Way(is_normed=True, is_behind=True)
WAYS = (Way(),), (NORMED,) * 3 + (Way(),), (BESIDE,) * 3 + (BEHIND,), (Way(has_base=True),)


def assert_near(found: jax.Array, expected: jax.Array) -> None:
    """Within rounding of the largest value, and much nearer than that on average."""
    found, expected = (np.asarray(array, np.float64) for array in (found, expected))
    error, largest = np.abs(found - expected), np.abs(expected).max()
    assert np.isfinite(found).all()
    assert error.max() <= ROUNDING * largest
    assert error.mean() <= 0.1 * ROUNDING * largest


def far(found: jax.Array, expected: jax.Array) -> float:
    """The mean distance, against the mean of what is expected."""
    found, expected = (np.asarray(array, np.float64) for array in (found, expected))
    return float(np.abs(found - expected).mean() / np.abs(expected).mean())


def farthest(found: jax.Array, expected: jax.Array) -> float:
    """The largest distance, against the largest of what is expected."""
    found, expected = (np.asarray(array, np.float64) for array in (found, expected))
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def value_and_gradients(function: Callable[..., jax.Array], *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Of the sum of the function's values, each times a fixed number."""

    @jax.jit
    def both(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        value, pull = jax.vjp(function, *arrays)
        weights = jax.random.normal(jax.random.key(7), value.shape, jnp.float32).astype(value.dtype)
        return value, *pull(weights)

    return both(*arrays)


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return (jax.random.normal(jax.random.key(seed), shape) * scale).astype(jnp.bfloat16)


def documents(seed: int, most: int) -> tuple[Mask, np.ndarray]:
    """Rows cut into random documents, as the loader makes their tables."""
    random = np.random.default_rng(seed)
    firsts = [np.array([0])]
    for row in range(ROWS):
        cuts = random.choice(np.arange(1, LENGTH), random.integers(0, most), replace=False)
        firsts.append(row * LENGTH + np.sort(np.append(cuts, 0)))
    borders = np.unique(np.concatenate(firsts))
    tables = tables_of(borders, ROWS, LENGTH, ROWS)
    ids = (np.searchsorted(borders, np.arange(ROWS * LENGTH), side="right")).reshape(ROWS, LENGTH)
    mask = Mask(
        segment_ids_BS=jnp.asarray(ids, jnp.int32),
        document_starts_BM=jnp.asarray(tables.starts_BM),
        document_lengths_BM=jnp.asarray(tables.lengths_BM),
    )
    return mask, tables.starts_BM


def test_the_packed_form_can_be_had_here() -> None:
    assert jax.default_backend() == "gpu"
    assert takes_tables("default", jnp.bfloat16)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("most", [1, 3, 40])
def test_documents_held_apart_by_tables_are_those_of_plain_attention(groups: int, size: int, most: int) -> None:
    mask, _ = documents(most, most)
    arrays = [normal(number, ROWS, LENGTH, heads, size) for number, heads in enumerate((4, groups, groups))]
    plain = Mask(segment_ids_BS=mask.segment_ids_BS)
    found = value_and_gradients(lambda *qkv: attend(*qkv, mask, backend="cudnn_packed"), *arrays)
    exact = [array.astype(jnp.float32) for array in arrays]
    expected = value_and_gradients(lambda *qkv: attend(*qkv, plain, backend="xla"), *exact)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("groups", [4, 1])
def test_plain_causal_attention_is_that_of_xla(groups: int) -> None:
    arrays = [normal(number, ROWS, LENGTH, heads, SIZE) for number, heads in enumerate((4, groups, groups))]
    found = value_and_gradients(lambda *qkv: attend(*qkv, Mask(), backend="cudnn"), *arrays)
    exact = [array.astype(jnp.float32) for array in arrays]
    expected = value_and_gradients(lambda *qkv: attend(*qkv, Mask(), backend="xla"), *exact)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


def test_places_behind_the_last_document_change_nothing() -> None:
    mask, starts = documents(5, 9)
    width = starts.shape[1]
    arrays = [normal(number, ROWS, LENGTH, 4, SIZE) for number in range(3)]

    def attended(places: int) -> tuple[jax.Array, ...]:
        wide = np.full(ROWS * places, ROWS * LENGTH, np.int32)
        lengths = np.zeros_like(wide)
        wide[: ROWS * width] = np.asarray(mask.document_starts_BM).ravel()
        lengths[: ROWS * width] = np.asarray(mask.document_lengths_BM).ravel()
        tables = cudnn.Tables(*(jnp.asarray(one.reshape(ROWS, places)) for one in (wide, lengths)))
        return value_and_gradients(lambda *qkv: cudnn.attend(*qkv, tables, 0.125), *arrays)

    narrow, wide = attended(width), attended(4 * width)
    np.testing.assert_array_equal(narrow[0], wide[0])
    for one, other in zip(narrow, wide, strict=True):  # gradients by queries are summed in any order
        assert_near(one, other)


@pytest.mark.parametrize("shape", [(8, 128, 512), (3, 7, 24)])
def test_the_gate_s_gradients_are_those_of_its_formula(shape: tuple[int, ...]) -> None:
    gate, up = normal(0, *shape, scale=3), normal(1, *shape)
    found = value_and_gradients(lambda gate, up: gated(gate, up, jax.nn.silu), gate, up)
    exact = gate.astype(jnp.float32), up.astype(jnp.float32)
    expected = value_and_gradients(lambda gate, up: jax.nn.silu(gate) * up, *exact)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("shape", [(4, 256, 1024), (2, 64, 384), (3, 7, 24)])
def test_what_is_gated_again_gives_the_gradients_of_what_is_kept(shape: tuple[int, ...]) -> None:
    gate, up, weight = normal(0, *shape), normal(1, *shape), normal(2, shape[-1], 64)
    found = value_and_gradients(
        lambda gate, up, weight: linear_of_gated(gate, up, jax.nn.silu, weight), gate, up, weight
    )
    exact = (one.astype(jnp.float32) for one in (gate, up, weight))

    def plain(gate: jax.Array, up: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.matmul(jax.nn.silu(gate) * up, weight, precision="highest")

    for one, other in zip(found, value_and_gradients(plain, *exact), strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "inner", "count", "activation"),
    [
        ((1, 1), 2048, 128, 25, gelu),
        ((16, 1), 2048, 64, 9, gelu),
        ((3, 2), 1000, 20, 3, jax.nn.silu),
        ((1, 5), 96, 7, 1, jax.nn.relu),
        ((2, 1), 2560, 200, 49, gelu),
    ],
)
def test_a_few_tokens_are_weighed_and_mixed_as_by_the_plain_network(
    rows: tuple[int, int],
    width: int,
    inner: int,
    count: int,
    activation: Callable[[jax.Array], jax.Array],
    has_norm: bool,
) -> None:
    ways = (BESIDE, BESIDE, NORMED, BEHIND)
    w_in, w_out, static = normal(1, width, inner, scale=width**-0.5), normal(2, inner, 4, count), normal(3, 4, count)
    network = Network(normal(4, width) if has_norm else None, w_in, w_out, static)
    earlier = tuple(normal(10 + number, *rows, width) for number in range(count - 1))
    mixture = Unweighed(normal(0, *rows, width, scale=3), earlier, normal(5, width))
    norms = normal(6, width), normal(7, width), None, None
    assert has_weighing_kernel(mixture.x_BSD, network) and has_mixing_kernel(mixture.x_BSD)
    last, streams = jax.jit(lambda *given: weigh_and_mix(*given[:2], activation, ways, 1e-6, given[2]))(
        mixture, network, norms
    )

    @jax.jit
    def plainly(mixture: Unweighed, network: Network, norms: tuple[jax.Array | None, ...]) -> list[jax.Array]:
        weighed = weigh(mixture.x_BSD, network, activation, 1e-6)
        states = (*mixture.earlier, weighed.last_BSD)
        whole = Mixture(weighed.weights_BSCM, states, mixture.x_BSD, mixture.after_D)
        return [weighed.last_BSD, *mix_plain(whole, ways, 1e-6, norms)]

    exact = plainly(*jax.tree.map(lambda one: one.astype(jnp.float32), (mixture, network, norms)))
    for one, other in zip([last, *streams], exact, strict=True):
        assert far(one, other) <= BETWEEN


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_products_of_a_few_rows_are_those_of_each(rows: int) -> None:
    xs = tuple(normal(number, rows, 1, 2048) for number in range(3))
    shapes = (2048, 16, 128), (2048, 2, 128), (2048, 4, 128)
    weights = tuple(normal(number, *shape, scale=2048**-0.5) for number, shape in enumerate(shapes))
    assert has_product_kernel(xs, weights)
    for number, found in enumerate(jax.jit(linear_each)(xs, weights)):
        exact = (one.astype(jnp.float32) for one in (xs[number], weights[number]))
        assert_near(found, jnp.einsum("BSD,DNH->BSNH", *exact, precision="highest"))


def test_streams_are_multiplied_with_weights_where_no_gradient_is_made() -> None:
    shape, ways = (16, 1, 2048), (BESIDE,) * 3 + (BEHIND,)
    states, base, after = tuple(normal(number, *shape) for number in range(9)), normal(9, *shape), normal(10, 2048)
    norms = (normal(11, 2048), normal(12, 2048), normal(13, 2048), None)
    mixture = Mixture(jax.random.normal(jax.random.key(3), (16, 1, 4, 9)), states, base, after)
    found = jax.jit(lambda mixture, norms: mix_for_good(mixture, ways, 1e-6, norms))(mixture, norms)
    exact_mixture, exact_norms = jax.tree.map(lambda one: one.astype(jnp.float32), (mixture, norms))
    for one, other in zip(found, mix_plain(exact_mixture, ways, 1e-6, exact_norms), strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("shape", [(8, 64, 512), (4, 32, 768), (3, 7, 24)])
def test_a_norm_beside_its_input_has_the_gradients_of_both(shape: tuple[int, ...]) -> None:
    x, weight = normal(0, *shape, scale=3), normal(1, shape[-1])

    def both(norm: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., jax.Array]:
        return lambda x, weight: jnp.stack(norm(x, weight, 1e-5))

    found = value_and_gradients(both(rms_norm_beside), x, weight)
    exact = x.astype(jnp.float32), weight.astype(jnp.float32)
    expected = value_and_gradients(both(lambda x, *rest: (rms_norm(x, *rest), x)), *exact)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("shape", [(8, 64, 512), (4, 32, 768), (4, 64, 2048)])
def test_a_norm_beside_its_input_makes_the_gradient_of_its_term(shape: tuple[int, ...]) -> None:
    x, unit, weight = normal(0, *shape, scale=3), normal(1, *shape), normal(2, shape[-1])
    after = normal(3, shape[-1])

    def beside(after: jax.Array, x: jax.Array, unit: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.stack(rms_norm_beside(x, weight, 1e-5, Term(unit, after)))

    def plain(after: jax.Array, x: jax.Array, unit: jax.Array, weight: jax.Array) -> jax.Array:
        x = x + unit * after - jax.lax.stop_gradient(unit * after)
        return jnp.stack((rms_norm(x, weight, 1e-5), x))

    found = value_and_gradients(lambda after, x, weight: beside(after, x, unit, weight), after, x, weight)
    exact = [one.astype(jnp.float32) for one in (after, x, unit, weight)]
    expected = value_and_gradients(lambda after, x, weight: plain(after, x, exact[2], weight), *exact[:2], exact[3])
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize(
    ("shape", "count", "at_once", "ways"),
    [  # each shape with each number of mixtures, and these with all ways
        (*shape, at_once, WAYS[(place + at_once) % len(WAYS)])
        for place, shape in enumerate(
            [
                ((3, 5, 40), 4),
                ((4, 64, 512), 3),
                ((3, 7, 1000), 5),
                ((2, 64, 1024), 13),
                ((2, 32, 2048), 24),
                ((2, 16, 2560), 33),
            ]
        )
        for at_once in (1, 2, 3)
    ],
)
def test_mixtures_and_their_gradients_are_those_of_the_formula(
    shape: tuple[int, ...], count: int, at_once: int, ways: tuple[Way, ...]
) -> None:
    """Of some in a row, as in a model: each has one state more than the last, and may leave gradients to the first."""
    has_base, has_after = any(way.has_base or way.is_behind for way in ways), BEHIND in ways
    turns = together([len(ways)] * at_once, ends=True) if at_once > 1 else (ALONE, Turn(begins=True))
    most = count + len(turns) - 1
    states, base, after = normal(0, most, *shape), normal(1, *shape), normal(2, shape[-1])
    weights = jax.random.normal(jax.random.key(3), (len(turns), *shape[:-1], len(ways), most)) * count**-0.5
    assert has_mixing_kernel(states[0])

    def each(mixed: Callable[..., Mixed]) -> Callable[..., jax.Array]:
        def streams(weights: jax.Array, states: jax.Array, base: jax.Array, after: jax.Array) -> jax.Array:
            beside = base if has_base else None, after if has_after else None
            made, mixing, debts = list[jax.Array](), tuple(states[:count]), ()
            for later, turn in enumerate(turns):
                mixture = Mixture(weights[later, ..., : count + later], mixing, *beside)
                one = mixed(mixture, ways, 1e-6, debts, turn)
                made += one.streams
                mixing, debts = (*one.states, *states[count + later : count + later + 1]), one.debts
            return jnp.stack(made)

        return streams

    def plain(mixture: Mixture, ways: tuple[Way, ...], epsilon: float, *_: object) -> Mixed:
        return Mixed(mix_plain(mixture, ways, epsilon), mixture.states)

    found = value_and_gradients(each(mix), weights, states, base, after)
    exact = (one.astype(jnp.float32) for one in (states, base, after))
    expected = value_and_gradients(each(plain), weights, *exact)
    for one, other in zip(found[: 3 + has_base + has_after], expected, strict=False):
        assert far(one, other) <= BETWEEN
        assert farthest(one, other) <= ROUNDING


@pytest.mark.parametrize(("width", "earlier"), [(512, 3), (1000, 6), (2048, 23)])
def test_the_last_state_may_be_normed_where_it_is_mixed(width: int, earlier: int) -> None:
    ways, inner, states = (BESIDE,) * 3 + (BEHIND,), 128, normal(0, earlier + 1, 4, 32, width)
    norm, after = 1 + normal(1, width, scale=0.1), normal(2, width)
    w_in, w_out = normal(3, width, inner, scale=width**-0.5), normal(4, inner, 4, earlier + 1, scale=inner**-0.5)

    def each(weigh: Callable[..., Weighed], mixed: Callable[..., Mixed]) -> Callable[..., jax.Array]:
        def made(states: jax.Array, norm: jax.Array, w_in: jax.Array, w_out: jax.Array, after: jax.Array) -> jax.Array:
            weighed = weigh(states[-1], Network(norm, w_in, w_out, None), gelu, 1e-6)
            mixing = (*states[:-1], weighed.last_BSD)
            mixture = Mixture(weighed.weights_BSCM, mixing, weighed.x_BSD, after, weighed.norm)
            found = mixed(mixture, ways, 1e-6)
            return jnp.stack([*found.streams, found.states[-1]])

        return made

    def plain(mixture: Mixture, ways: tuple[Way, ...], epsilon: float) -> Mixed:
        return Mixed(mix_plain(mixture, ways, epsilon), mixture.states)

    given = states, norm, w_in, w_out, after
    found = value_and_gradients(each(weigh_unnormed, mix), *given)
    with jax.default_matmul_precision("highest"):
        expected = value_and_gradients(each(weigh, plain), *(one.astype(jnp.float32) for one in given))
    for one, other in zip(found, expected, strict=True):  # rounded on the way into the network, and out of it
        assert far(one, other) <= ROUNDING
        assert farthest(one, other) <= 2 * ROUNDING


@pytest.mark.parametrize(("vocabulary", "columns"), [(4096, 4096), (5003, 5003), (50_257, 50_304), (128_256, 128_256)])
def test_the_loss_and_its_gradients_are_those_of_plain_softmax(vocabulary: int, columns: int) -> None:
    hidden, head = normal(0, 512, 128), normal(1, 128, columns, scale=0.3)
    targets = jax.random.randint(jax.random.key(2), (512,), 0, vocabulary)
    weights = jax.random.uniform(jax.random.key(3), (512,))

    def fused(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return cross_entropy_sums(hidden, head, targets, weights, vocab_size=vocabulary).loss

    found = jax.jit(jax.value_and_grad(fused, argnums=(0, 1)))(hidden, head)

    def plain(hidden: jax.Array, head: jax.Array) -> jax.Array:
        logits = jnp.matmul(hidden, head[:, :vocabulary], precision="highest")
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=-1)[:, 0]
        return -(chosen * weights).sum()

    expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))(*(one.astype(jnp.float32) for one in (hidden, head)))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        assert_near(one, other)


def test_products_in_8_bits_are_made_by_the_gpu_and_are_near_exact_ones() -> None:
    x, weight = normal(0, 2, 512, 256), normal(1, 256, 768, scale=0.02)
    found = value_and_gradients(lambda x, weight: fp8_product(x, weight, 1), x, weight)
    expected = value_and_gradients(jnp.matmul, *(one.astype(jnp.float32) for one in (x, weight)))
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm(np.asarray(one, np.float64) - np.asarray(other, np.float64))
        assert 0.02 < error / np.linalg.norm(np.asarray(other, np.float64)) < 0.08
    step = jax.jit(lambda *both: value_and_gradients(lambda x, weight: fp8_product(x, weight, 1), *both))
    as_in_runs = {"xla_gpu_enable_triton_gemm": False}
    program = step.lower(x, weight).compile(as_in_runs).as_text()
    assert 'custom_call_target="__cublas$lt$matmul$f8"' in program
    assert not re.search(r'custom_call_target="__cublas\$(gemm|lt\$matmul)"', program)


def test_rows_that_are_looked_up_often_get_the_whole_of_their_gradient() -> None:
    table, ids = normal(0, 16, 64), jnp.zeros(4096, jnp.int32).at[:8].set(jnp.arange(8))
    by_rows = jnp.ones((4096, 64), jnp.bfloat16)
    gradient = jax.jit(lambda table: jax.vjp(lambda table: lookup(table, ids), table)[1](by_rows)[0])(table)
    assert gradient[0].astype(jnp.float32).tolist() == [4096.0] * 64  # 4089, rounded once
