"""Which of several processes this is, by what launchers set."""

import pytest

from ponente.train.launchers import Place, place_in

SRUN = {
    "SLURM_JOB_ID": "7000001",
    "SLURM_STEP_NODELIST": "gpu[007-012,020],login",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x7)",
}
TORCHRUN = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"}
TPUS = {"TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2", "TPU_WORKER_ID": "2"}


def test_processes_of_srun_meet_on_the_first_node() -> None:
    port = 12_000 + 7_000_001 % 4_096
    assert place_in(SRUN) == Place(address=f"gpu007:{port}", count=7, index=3)
    for nodes, first in {"n1": "n1", "a,b": "a", "n[1,3]": "n1", "x-[08-09]": "x-08"}.items():
        place = place_in(SRUN | {"SLURM_STEP_NODELIST": nodes})
        assert place is not None and place.address == f"{first}:{port}"


@pytest.mark.parametrize(
    ("changes", "local"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LOCALID": "3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_LOCALID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LOCALID": "3", "CUDA_VISIBLE_DEVICES": "3"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, None),
    ],
)
def test_processes_that_share_a_machine_take_a_gpu_each(changes: dict[str, str], local: int | None) -> None:
    place = place_in(SRUN | changes)
    assert place is not None and place.local_index == local


def test_torchrun_s_port_is_its_own() -> None:
    assert place_in(TORCHRUN) == Place(address="10.0.0.7:29501", count=4, index=2)
    place = place_in(TORCHRUN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert place is not None and place.local_index == 1


def test_machines_of_a_slice_meet_on_the_first() -> None:
    assert place_in(TPUS) == Place(address="t-0:12355", count=3, index=2)
    slices = {"MEGASCALE_NUM_SLICES": "4", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_COORDINATOR_ADDRESS": "s-0:8080"}
    assert place_in(TPUS | slices) == Place(address="s-0:12355", count=12, index=8)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script, not a step of srun
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
        TORCHRUN | {"WORLD_SIZE": "1"},
        TORCHRUN | {"RANK": "first"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"TPU_WORKER_HOSTNAMES": "a,b"},
    ],
)
def test_alone_is_alone(environment: dict[str, str]) -> None:
    assert place_in(environment) is None
