"""Who started this process together with others, and which of them it is, by the environment that launchers set.

In: environment variables of Slurm (`srun`), of torchrun and its like, or of TPU virtual machines. Out: a `Place`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PORTS_OF_JOBS = 12_000, 4_096  # the first, and how many: jobs on one machine have different ones
_PORT_OF_TPUS = 12_355


@dataclass(frozen=True, kw_only=True)
class Place:
    """One of several processes that were started together."""

    address: str  # host:port, at which the first of them can listen
    count: int
    index: int
    local_index: int | None = None  # among those of this machine, where each takes one of its devices


def place_in(environment: Mapping[str, str]) -> Place | None:
    """The place of this process; None where it is alone."""
    for launcher in (_slurm, _torchrun, _tpus):
        try:
            place = launcher(environment)
        except (ValueError, KeyError):  # names of such a launcher, with other meanings
            continue
        if place is not None and place.count > 1:
            return place
    return None


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """Of a step that `srun` began; in a batch script alone there is no list of its nodes."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    if any(name not in environment for name in names):
        return None
    job, nodes, tasks, index = (environment[name] for name in names)
    first, many = _PORTS_OF_JOBS
    here = environment.get("SLURM_STEP_TASKS_PER_NODE", "1")  # 2(x3),1
    return Place(
        address=f"{_first_node(nodes)}:{first + int(job) % many}",
        count=int(tasks),
        index=int(index),
        local_index=_local(environment, "SLURM_LOCALID", is_shared=re.fullmatch(r"1(\(x\d+\))?", here) is None),
    )


def _first_node(nodes: str) -> str:
    """`gpu[007-012,020],login` begins with gpu007."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", nodes)
    if found is None:
        raise ValueError(nodes)
    return found[1] + (found[2] or "")


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    if any(name not in environment for name in names):
        return None
    host, port, count, index = (environment[name] for name in names)
    return Place(
        address=f"{host}:{int(port) + 1}",  # its own is taken
        count=int(count),
        index=int(index),
        local_index=_local(environment, "LOCAL_RANK", is_shared=int(environment.get("LOCAL_WORLD_SIZE", "1")) > 1),
    )


def _tpus(environment: Mapping[str, str]) -> Place | None:
    """Of slices of TPUs with several machines, as Kubernetes tells them."""
    hosts = [host for host in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if not hosts or "TPU_WORKER_ID" not in environment:
        return None
    index, slices = int(environment["TPU_WORKER_ID"]), int(environment.get("MEGASCALE_NUM_SLICES", "1"))
    first = hosts[0]
    if slices > 1:
        first = environment["MEGASCALE_COORDINATOR_ADDRESS"].partition(":")[0]
        index += int(environment["MEGASCALE_SLICE_ID"]) * len(hosts)
    count = slices * len(hosts)
    return Place(address=f"{first}:{_PORT_OF_TPUS}", count=count, index=index)


def _local(environment: Mapping[str, str], name: str, *, is_shared: bool) -> int | None:
    """Which GPU of the machine is this process's, where several processes see all of them."""
    sees_one = len(environment.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) == 1
    return int(environment[name]) if is_shared and name in environment and not sees_one else None
