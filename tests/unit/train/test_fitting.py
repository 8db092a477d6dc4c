"""How many rows at once fit: found in three compilations at most, and refused with numbers where none does."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from ponente.config.errors import RefusedError
from ponente.train.fitting import GIB, Need, bytes_of_part, check_state, check_step, largest_that_fits

STATE, ACCUMULATORS = 10 * GIB, 2 * GIB
SIZES = [1, 2, 4, 8, 16, 32, 64]


def needing(fixed: float, each: float, accumulators: float = 2) -> tuple[Callable[[int], Need], list[int]]:
    """Steps that need so many GiB, and as many more for each row; and which of them were compiled."""
    compiled: list[int] = []

    def need(rows: int) -> Need:
        compiled.append(rows)
        added = 0 if rows == SIZES[-1] else accumulators
        return Need(STATE, int((fixed + added + each * rows) * GIB))

    return need, compiled


@pytest.mark.parametrize("fixed", [0, 3, 20])
@pytest.mark.parametrize("each", [0.3, 1, 2.7])
@pytest.mark.parametrize("memory", [40, 64, 141, 400])
def test_the_largest_that_fits_is_found_in_three_compilations(fixed: float, each: float, memory: int) -> None:
    need, compiled = needing(fixed, each)
    fitting = [rows for rows in SIZES if needing(fixed, each)[0](rows).total <= memory * GIB]
    found, told = largest_that_fits(SIZES, need, ACCUMULATORS, memory * GIB)
    assert found == max(fitting)
    assert sorted(compiled) == sorted(told) and len(compiled) <= 3


def test_all_rows_are_one_compilation_where_they_fit() -> None:
    need, compiled = needing(1, 1)
    assert largest_that_fits(SIZES, need, ACCUMULATORS, 80 * GIB)[0] == 64
    assert compiled == [64]


def test_what_fits_is_taken_where_growth_is_not_even() -> None:
    """The third compilation is a guess that may fail; what the second found then stands."""
    sizes = {64: 200, 32: 70, 16: 25, 8: 20, 4: 10, 2: 8, 1: 7}
    found, told = largest_that_fits(SIZES, lambda rows: Need(0, sizes[rows] * GIB), 0, 60 * GIB)
    assert found in (8, 16) and told[found].total <= 60 * GIB
    assert len(told) <= 3


def test_the_smallest_is_tried_before_it_refuses() -> None:
    sizes = {64: 200, 32: 100, 16: 70, 8: 62, 4: 61, 2: 61, 1: 30}
    assert largest_that_fits(SIZES, lambda rows: Need(0, sizes[rows] * GIB), 0, 60 * GIB)[0] == 1


@pytest.mark.parametrize("sizes", [SIZES, [1]])
def test_what_cannot_fit_is_refused_with_its_size(sizes: list[int]) -> None:
    need, compiled = needing(12, 1)
    with pytest.raises(
        RefusedError, match=r"needs 2\d\.00 GiB \(10.00 of state, 1\d.00 while it runs\).* has 20.00 GiB"
    ):
        largest_that_fits(sizes, need, ACCUMULATORS, 20 * GIB)
    assert len(compiled) <= 3


def test_a_step_that_fits_is_not_refused_and_one_that_does_not_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ponente.train.fitting.device_memory", lambda: 20 * GIB)
    check_step(Need(10 * GIB, 10 * GIB), None)
    with pytest.raises(RefusedError, match=r"has 20.00 GiB.*Set trainer.per_device_parallelism: auto"):
        check_step(Need(10 * GIB, 11 * GIB), None)
    with pytest.raises(RefusedError, match=r"fits. Set model.gradient_checkpointing: true"):
        check_step(Need(10 * GIB, 11 * GIB), 1)


def test_a_state_is_measured_by_what_one_device_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    array = jax.ShapeDtypeStruct((64, 1024, 1024), jnp.float32, sharding=split)
    assert bytes_of_part(array) == 8 * 4 << 20
    monkeypatch.setattr("ponente.train.fitting.device_memory", lambda: 33 << 20)
    check_state({"w": array})
    with pytest.raises(RefusedError, match=r"of 0.06 GiB for each device, which has 0.03"):
        check_state({"w": array, "m": array})


def test_the_compiler_tells_what_a_program_needs() -> None:
    program = jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x).T).lower(jax.ShapeDtypeStruct((256, 1024), jnp.float32))
    need = Need.of(program.compile())
    assert need.state == 256 * 1024 * 4
    assert need.temporary >= 256 * 256 * 4  # the result, at least
