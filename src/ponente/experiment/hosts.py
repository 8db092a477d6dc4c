"""A training step over several hosts of a cluster: the step's process leads, and one process a host trains."""

import json
from dataclasses import asdict, replace
from typing import Any

from ponente.cluster.context import StepContext
from ponente.cluster.launch import Task
from ponente.cluster.resources import Resources, TpuPodConfig
from ponente.evaluate.perplexity import evaluation_of
from ponente.executor.transit import pack, unpack
from ponente.store.paths import join
from ponente.store.volume import volume_of
from ponente.train.config import TrainConfig
from ponente.train.run import TrainResult, train

_RESULT = "result.json"
_MEMBER = f"{__name__}:train_member"


def train_on_hosts(config: TrainConfig, resources: Resources, step: StepContext, state_path: str) -> TrainResult:
    """Trains with one process on each host; all begin again from the last checkpoint when one is lost."""
    from ponente.cluster.ray.gang import run_gang

    place = join(state_path, _RESULT)

    def member(number: int, count: int, address: str) -> Task:
        distributed = replace(
            config.trainer.distributed, coordinator_address=address, num_processes=count, process_id=number
        )
        own = replace(config, trainer=replace(config.trainer, distributed=distributed))
        return Task(
            name=f"{step.name} ({number} of {count})",
            entry=_MEMBER,
            job={"config": pack(own, _no_handle), "result": place},
            log_path=join(config.trainer.log_dir, f"process-{number}.txt"),
            env=_slice_variables(resources, number, address),
        )

    run_gang(member, resources, step.redactor.secrets)
    return TrainResult(**json.loads(volume_of(place).read(place)))


def _slice_variables(resources: Resources, number: int, address: str) -> dict[str, str]:
    """What libtpu wants to know of several slices."""
    if not isinstance(resources, TpuPodConfig) or resources.slice_count == 1:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": address.rpartition(":")[0],
        "MEGASCALE_NUM_SLICES": str(resources.slice_count),
        "MEGASCALE_SLICE_ID": str(number // resources.hosts_per_slice),
    }


def train_member(job: dict[str, Any]) -> int:
    """One process of the training; the first tells what came of it."""
    config = unpack(job["config"], _no_place)
    result = train(config, make_evaluate=evaluation_of)
    if config.trainer.distributed.is_first:
        volume_of(job["result"]).replace(job["result"], json.dumps(asdict(result)).encode())
    return 0


def _no_handle(handle: object) -> str:
    raise TypeError(f"found {handle!r} in a config whose handles were resolved")


def _no_place(own: object, path: str) -> str:
    raise TypeError(f"found a place {own!r} in a config whose places were resolved")
