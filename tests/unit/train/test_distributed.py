"""`trainer.distributed`: what is refused, and what JAX is told; tests/faults/test_processes.py runs real processes."""

from typing import Any

import jax
import pytest

from ponente.cluster.gang import Alone
from ponente.config.errors import RefusedError
from ponente.train import distributed, run
from ponente.train.distributed import DistributedConfig, joined

TWO = {"coordinator_address": "node0:12355", "num_processes": 2, "process_id": 1}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"process_id": None}, "found trainer.distributed without process_id"),
        ({"coordinator_address": None}, "found trainer.distributed without coordinator_address"),
        ({"coordinator_address": "node0"}, "found trainer.distributed.coordinator_address: node0; needed host:port"),
        ({"coordinator_address": "node0:http"}, "found trainer.distributed.coordinator_address: node0:http"),
        ({"process_id": 2}, "found trainer.distributed.process_id: 2 of 2 processes; needed 0 to 1"),
        ({"process_id": -1}, "found trainer.distributed.process_id: -1"),
        ({"timeout": "soon"}, "trainer.distributed.timeout"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], found: str) -> None:
    DistributedConfig(**TWO).check()  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=found):
        DistributedConfig(**(TWO | changes)).check()  # type: ignore[arg-type]


def test_a_launcher_says_what_the_config_does_not() -> None:
    launched = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    assert DistributedConfig().found(launched) == DistributedConfig(
        coordinator_address="node0:29501", num_processes=2, process_id=1
    )
    for alone in (DistributedConfig(initialize_jax_distributed=False), DistributedConfig(**TWO)):  # type: ignore[arg-type]
        assert alone.found(launched) is alone
    assert not DistributedConfig().found({}).is_given


@pytest.mark.parametrize(
    "config", [{}, {"initialize_jax_distributed": False}, {**TWO, "initialize_jax_distributed": False}]
)
def test_one_process_is_alone(config: dict[str, Any]) -> None:
    given = DistributedConfig(**config)
    given.check()
    with joined(given, "run") as gang:
        assert isinstance(gang, Alone)


def test_devices_of_processes_that_are_no_part_of_the_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run._check_processes(Alone())
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(RefusedError, match=r"found devices of 4 processes, and 1 that train together"):
        run._check_processes(Alone())


def test_jax_is_told_what_the_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def initialize(address: str, count: int, index: int, **rest: Any) -> None:
        told.update(rest, address=address, count=count, index=index)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(distributed, "_free_port", lambda wanted: wanted)
    config = DistributedConfig(coordinator_address="h:100", num_processes=1, process_id=0, local_device_ids=[2, 3])
    distributed._start_jax(config, Alone(), 7)
    assert told["address"] == "h:101" and told["local_device_ids"] == [2, 3] and told["initialization_timeout"] == 7
