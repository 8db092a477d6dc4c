"""One task in several processes at once, one on each host: all of them run, or none.

In: what each process is to do, given its number and the address of the first. Out: the end of all. When one is lost or
fails, the others are ended and all begin again, from what the task has saved: often after preemptions, seldom after
errors. Hosts come as one placement group; those of a TPU slice are of the same slice.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ponente.cluster.address import cluster_address
from ponente.cluster.launch import LOST_EXIT, RESUME_EXIT, Task
from ponente.cluster.ray.connection import connect, handed_on, nodes, own_paths
from ponente.cluster.ray.host import Ending, TaskHost
from ponente.cluster.ray.resources import host_options, without_accelerators
from ponente.cluster.resources import CpuOnly, Resources, TpuPodConfig

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 120.0  # for a checkpoint after SIGTERM
_PATIENCE_SECONDS = 60.0
_PREEMPTED = (RESUME_EXIT, LOST_EXIT, -signal.SIGKILL, -signal.SIGTERM)

Member = Callable[[int, int, str], Task]  # (number, count, address of the first) -> what it does


class GangError(RuntimeError):
    """A process of the gang failed for good."""


@dataclass(frozen=True)
class GangRetries:
    """How often all may begin again."""

    errors: int = 2
    preemptions: int = 100


_RETRIES = GangRetries()


def run_gang(member: Member, resources: Resources, secrets: list[str], retries: GangRetries = _RETRIES) -> None:
    """Runs a task on all hosts that `resources` asks for, to its end.

    Raises:
        GangError: it failed more often than it may.
    """
    address = cluster_address()
    assert address is not None, "a gang needs a cluster"
    connect(address)
    errors = preemptions = 0
    while True:
        with _hosts(resources) as hosts:
            endings, own = _run_once(hosts, member, resources, secrets)
        codes = [ending.code for ending in endings]
        failed = next((number for number, code in enumerate(codes) if code and code not in _PREEMPTED), None)
        if not any(codes):
            return
        # Those that are left when one is lost end with an error; those that we ask to end, as if they were preempted.
        if any(code in _PREEMPTED for code in own) or LOST_EXIT in codes:
            preemptions += 1
        else:
            errors += 1
        told = ", ".join(f"process {index}: {_how(code)}" for index, code in enumerate(codes))
        if errors > retries.errors or preemptions > retries.preemptions:
            said = "" if failed is None else f"; what process {failed} said last:\n{endings[failed].tail}"
            raise GangError(f"{told}{said}")
        logger.warning("%s; all begin again", told)
        time.sleep(min(10.0, 0.1 * 2 ** min(errors + preemptions, 10)))


def _how(code: int) -> str:
    if code == LOST_EXIT:
        return "lost with its machine"
    return "done" if code == 0 else f"ended by signal {-code}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _hosts(resources: Resources) -> Iterator[list[Any]]:
    """An actor on each host, when all hosts are there."""
    with _groups(resources) as places:
        actors = []
        host: Any = ray.remote(TaskHost)
        for group, bundle in places:
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            options = host_options(resources)
            actors.append(host.options(scheduling_strategy=strategy, max_concurrency=4, **options).remote())
        try:
            yield actors
        finally:
            for actor in actors:
                with contextlib.suppress(RayError):
                    ray.kill(actor)


@contextlib.contextmanager
def _groups(resources: Resources) -> Iterator[list[tuple[PlacementGroup, int]]]:
    """Where each process goes: a placement group and the number in it; all of them at once."""
    if isinstance(resources, TpuPodConfig):
        with _slices(resources) as places:
            yield places
        return
    group = placement_group([_bundle(host_options(resources))] * resources.host_count, strategy="STRICT_SPREAD")
    try:
        _await(group, f"{resources.host_count} hosts with {host_options(resources)} each")
        yield [(group, index) for index in range(resources.host_count)]
    finally:
        remove_placement_group(group)


def _bundle(options: dict[str, Any]) -> dict[str, float]:
    named = {"CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 0)}
    kind = options.get("accelerator_type")
    extra = {f"accelerator_type:{kind}": 0.001} if kind else {}
    return {name: value for name, value in (named | options.get("resources", {}) | extra).items() if value}


@contextlib.contextmanager
def _slices(resources: TpuPodConfig) -> Iterator[list[tuple[PlacementGroup, int]]]:
    """All hosts of each slice: its first one is reserved by the resource that Ray gives it, which names the slice."""
    groups = [placement_group([{resources.head: 1}] * resources.slice_count, strategy="STRICT_SPREAD")]
    places: list[tuple[PlacementGroup, int]] = []
    try:
        # All at once: two gangs that each have one slice would wait for the other's for ever.
        _await(groups[0], f"{resources.slice_count} slices {resources.tpu_type}")
        for name in _slice_names(groups[0], resources.head):
            bundles = [{"TPU": float(resources.chips_per_host), name: 1.0}] * resources.hosts_per_slice
            groups.append(placement_group(bundles, strategy="STRICT_SPREAD"))
            _await(groups[-1], f"{resources.hosts_per_slice} hosts of slice {name}")
            places += [(groups[-1], index) for index in range(resources.hosts_per_slice)]
        yield places
    finally:
        for group in groups:
            remove_placement_group(group)


def _slice_names(heads: PlacementGroup, resource: str) -> list[str]:
    """The resources that all hosts of each slice have: their labels name the slice."""
    table = ray.util.placement_group_table(heads)
    there = {one["NodeID"]: one for one in nodes()}
    names = []
    for node in table["bundles_to_node_id"].values():
        name = there[node].get("Labels", {}).get("ray.io/tpu-slice-name")
        if not name or name not in there[node]["Resources"]:
            raise GangError(
                f"found {resource} on a machine whose slice has no name (labels {there[node].get('Labels')}); "
                "needed Ray's own label ray.io/tpu-slice-name and a resource of that name"
            )
        names.append(str(name))
    return names


def _await(group: PlacementGroup, what: str) -> None:
    while not group.wait(_PATIENCE_SECONDS):
        logger.warning("the cluster does not have %s to spare yet; still waiting", what)


def _run_once(
    hosts: list[Any], member: Member, resources: Resources, secrets: list[str]
) -> tuple[list[Ending], list[int]]:
    """Runs all processes until all have ended; the first that fails ends the others.

    Returns:
        How each ended, and the exit codes of those that ended by themselves.
    """
    ended: dict[int, Ending] = {}
    try:
        address = ray.get(hosts[0].free_address.remote())
        tasks = [member(number, len(hosts), address) for number in range(len(hosts))]
        hidden = without_accelerators(resources) if isinstance(resources, CpuOnly) else {}
        env = [{**handed_on(), **hidden, **task.env} for task in tasks]
        wholes = [replace(task, env=own, path=own_paths()) for task, own in zip(tasks, env, strict=True)]
        ray.get([host.start.remote(whole, secrets) for host, whole in zip(hosts, wholes, strict=True)])
    except RayError as error:
        return [Ending(LOST_EXIT, str(error))] * len(hosts), [LOST_EXIT]
    try:
        _collect(hosts, ended, lambda: len(ended) < len(hosts) and not any(one.code for one in ended.values()))
    finally:  # after a failure, and where this process is asked to end
        own = [one.code for one in ended.values()]
        if len(ended) < len(hosts):
            _stop(hosts, ended)
    return [ended.get(number, Ending(-signal.SIGKILL, "")) for number in range(len(hosts))], own


def _collect(hosts: list[Any], ended: dict[int, Ending], go_on: Callable[[], bool]) -> None:
    """Asks all that have not ended, at once, again and again."""
    asked: dict[Any, int] = {}
    while go_on():
        waiting = set(range(len(hosts))) - set(ended) - set(asked.values())
        asked |= {hosts[number].wait.remote(_LOOK_SECONDS): number for number in waiting}
        answered, _ = ray.wait(list(asked), num_returns=1, timeout=2 * _LOOK_SECONDS)
        for answer in answered:
            number = asked.pop(answer)
            try:
                ending = ray.get(answer)
            except ActorUnavailableError:  # for the moment, says Ray
                time.sleep(_LOOK_SECONDS)
                continue
            except RayError as error:
                ending = Ending(LOST_EXIT, str(error))
            if ending is not None:
                ended[number] = ending


def _stop(hosts: list[Any], ended: dict[int, Ending]) -> None:
    """Asks what still runs to save and end."""
    for number, host in enumerate(hosts):
        if number not in ended:
            with contextlib.suppress(RayError):
                host.stop.remote(signal.SIGTERM)
    until = time.monotonic() + _GRACE_SECONDS
    _collect(hosts, ended, lambda: len(ended) < len(hosts) and time.monotonic() < until)
