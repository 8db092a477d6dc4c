"""Sums of squares of trees whose arrays are stacked, alike, of many shapes, or large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.train.norms import norm, squares

SHAPES = {
    "blocks": {"w": (3, 4, 5), "norm": (3, 4)},
    "connections": [
        {"norm": (4,), "w_out": (2, 4, 2), "static": (4, 2)},
        {"norm": (4,), "w_out": (3, 4, 3), "static": (4, 3)},
        {"norm": (4,), "w_out": (2, 1, 4), "static": (1, 4)},
    ],
    "w_in": [(200, 100), (200, 100), (200, 110)],  # too large to be padded
    "embed": (1100, 1000),
}


def _tree(dtype: jnp.dtype) -> dict[str, object]:
    random = np.random.default_rng(0)
    made: dict[str, object] = jax.tree.map(
        lambda shape: jnp.asarray(random.normal(size=shape), dtype), SHAPES, is_leaf=lambda one: isinstance(one, tuple)
    )
    return made


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_each_array_has_its_own_sum_and_each_stacked_layer(dtype: jnp.dtype) -> None:
    tree = _tree(dtype)
    found = jax.jit(squares)(tree)
    by_name = found.by_name()
    expected = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        values = np.asarray(leaf, np.float64) ** 2
        expected[name] = values.reshape(len(values), -1).sum(axis=1) if name.startswith("blocks.") else [values.sum()]
    assert by_name.keys() == expected.keys()
    for name, sums in by_name.items():
        np.testing.assert_allclose(sums, expected[name], rtol=1e-5, err_msg=name)
    total = np.sqrt(sum(np.sum(one) for one in expected.values()))
    np.testing.assert_allclose(float(norm(found)), total, rtol=1e-5)


def test_what_is_not_finite_is_so_in_its_own_array_alone() -> None:
    tree = _tree(jnp.dtype(jnp.float32))
    tree["connections"][1]["static"] = jnp.full((4, 3), jnp.inf)  # type: ignore[index]
    by_name = squares(tree).by_name()
    assert [name for name, sums in by_name.items() if not np.isfinite(sums).all()] == ["connections.1.static"]
