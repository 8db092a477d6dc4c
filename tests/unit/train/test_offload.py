"""What the optimizer keeps in the host's memory: the same numbers, there before and after each step and each load."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from unit.train.test_mesh import LLAMA, PADDED, layout_of, settings
from unit.train.test_step import batch
from unit.train.test_training import Site, caches, site  # noqa: F401 (fixtures)

from ponente.config.errors import RefusedError
from ponente.models.parameters import initialize
from ponente.store.checkpoint import read_metadata
from ponente.train import fitting, offload
from ponente.train.beginning import Resumption, abstract_state, begin
from ponente.train.estimate import estimate
from ponente.train.fitting import Need, check_state
from ponente.train.hardware import hardware
from ponente.train.mesh import specs_of, state_shardings
from ponente.train.offload import HOST, check_offload, is_on_host, on_host
from ponente.train.optimizers import MuonConfig
from ponente.train.setup import set_up
from ponente.train.state import TrainState, named_arrays, state_of
from ponente.train.step import TrainStep

OPTIMIZERS = {
    "adamw": optax.adamw(1e-2),
    "muon": MuonConfig(learning_rate=1e-2).build(LLAMA.parameters(PADDED), 10),
}
OFFLOADED = ("--trainer.offload_optimizer", "true")


def kinds(state: TrainState) -> dict[str, set[str]]:
    """By part of the state, in which memories its arrays lie; single numbers apart."""
    found: dict[str, set[str]] = {}
    for name, array in named_arrays(state).items():
        part = name.partition(".")[0] if array.ndim else "numbers"
        found.setdefault(part, set()).add(array.sharding.memory_kind)
    return found


@pytest.mark.parametrize(("shape", "optimizer"), [(None, OPTIMIZERS["adamw"]), ((1, 4, 2), OPTIMIZERS["muon"])])
def test_steps_are_the_same_and_leave_it_on_the_host(shape: Any, optimizer: optax.GradientTransformation) -> None:
    layout = None if shape is None else layout_of(shape)
    specs = None if layout is None else specs_of(layout, LLAMA.parameters(PADDED))

    def after_three(*, offloads: bool) -> TrainState:
        given = settings(optimizer=optimizer, layout=layout, specs=specs, offloads_optimizer=offloads)
        state = state_of(initialize(LLAMA.parameters(PADDED), 0), optimizer, is_averaged=True)
        rows = batch()
        if layout is not None:
            state = jax.device_put(state, state_shardings(layout, specs, state))
            rows = jax.device_put(rows, layout.sharding(layout.batch_spec))
        if offloads:
            state = jax.device_put(state, jax.tree.map(lambda shape: shape.sharding, on_host(state)))
            assert kinds(state)["optimizer"] == {HOST}
        step = TrainStep(given)
        for number in range(3):
            state, _ = step(state, rows, number)
        return state

    with_it, without = after_three(offloads=True), after_three(offloads=False)
    assert kinds(with_it) == {**{key: {"device"} for key in ("model", "average", "numbers")}, "optimizer": {HOST}}
    assert kinds(without)["optimizer"] == {"device"}
    for name, array in named_arrays(without).items():
        assert named_arrays(with_it)[name].sharding.spec == array.sharding.spec if layout else True
        np.testing.assert_array_equal(np.asarray(named_arrays(with_it)[name]), np.asarray(array), err_msg=name)


def test_a_run_goes_on_with_it_and_without_it(site: Site) -> None:  # noqa: F811
    for run, flags in {"plain": (), "host": OFFLOADED}.items():
        site.train(*flags, "--trainer.num_train_steps", "4", run=run)
    assert site.losses("host") == site.losses("plain")
    for run, flags in {"plain": OFFLOADED, "host": ()}.items():
        site.train(*flags, "--trainer.num_train_steps", "8", run=run)
    # A longer run has another schedule, so the two that changed are compared with each other.
    assert site.losses("plain") == site.losses("host")
    first, second = site.weights("plain"), site.weights("host")
    assert all((first[name] == second[name]).all() for name in first)


def test_the_first_state_and_one_that_is_loaded_lie_where_they_should(site: Site) -> None:  # noqa: F811
    made = site.train("--trainer.num_train_steps", "2")
    setup = set_up(site.load(*OFFLOADED))
    expected = {"model": {"device"}, "optimizer": {HOST}, "numbers": {"device"}}
    first = begin(setup, None)
    assert kinds(first) == expected
    plain = begin(set_up(site.load()), None)
    for name, array in named_arrays(plain).items():
        np.testing.assert_array_equal(np.asarray(named_arrays(first)[name]), np.asarray(array), err_msg=name)
    loaded = begin(setup, Resumption(made.checkpoint, read_metadata(made.checkpoint)))
    assert kinds(loaded) == expected and int(loaded.step) == 2


def test_memory_of_devices_is_told_without_it_and_that_of_the_host_is_checked(
    site: Site,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, offloaded = site.load(), site.load(*OFFLOADED)
    before, after = (estimate(one, hardware("h200")).memory for one in (plain, offloaded))
    assert after.weights == before.weights and after.total - after.optimizer == before.total - before.optimizer
    assert after.optimizer < before.optimizer / 100
    assert after.host == before.optimizer - after.optimizer
    shapes = abstract_state(set_up(offloaded))
    weights = sum(fitting.bytes_of_part(leaf) for leaf in jax.tree.leaves(shapes) if not is_on_host(leaf))
    monkeypatch.setattr(fitting, "device_memory", lambda: weights)
    check_state(shapes)
    with pytest.raises(RefusedError, match=r"set trainer.offload_optimizer: true"):
        check_state(abstract_state(set_up(plain)))
    monkeypatch.setattr(fitting, "machine_memory", lambda: weights)
    with pytest.raises(RefusedError, match=r"that the optimizer keeps and 0.00 of a checkpoint, on a host with"):
        check_state(shapes)


def test_devices_without_memory_of_the_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_offload()
    monkeypatch.setattr(offload, "HOST", "far_away")
    with pytest.raises(RefusedError, match=r"whose memories are device, pinned_host, .*; needed one of far_away"):
        check_offload()


def test_what_a_step_needs_of_devices_leaves_out_the_host() -> None:
    class Program:
        def memory_analysis(self) -> Any:
            names = ("argument", "output", "alias", "temp")
            sizes = {f"{name}_size_in_bytes": 10 for name in names}
            return type("Sizes", (), sizes | {f"host_{name}": 1000 for name in sizes})()

    assert Need.of(Program()) == Need(10, 10)  # type: ignore[arg-type]
