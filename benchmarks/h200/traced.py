"""Which kernels a program runs on a GPU, and how long each takes there, by JAX's profiler."""

import glob
import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernels of one name, of all runs together."""

    name: str
    count: int
    microseconds: float


def kernels(run: Callable[[], Any]) -> list[Kernel]:
    """The kernels of a run, those that take longest first; names that differ in a number behind are one."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(run())
        (file,) = glob.glob(f"{folder}/**/perfetto_trace.json.gz", recursive=True)
        with gzip.open(file) as stream:
            read = json.load(stream)
    return _summed(read["traceEvents"] if isinstance(read, dict) else read)


def _summed(events: list[dict[str, Any]]) -> list[Kernel]:
    named = {"process_name": {}, "thread_name": {}}
    for event in events:
        if event.get("name") in named:
            named[event["name"]][event["pid"], event.get("tid")] = event["args"]["name"]
    devices = {process for (process, _), name in named["process_name"].items() if "GPU" in str(name)}
    streams = {key for key, name in named["thread_name"].items() if key[0] in devices and "Stream" in name}
    times = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and (event["pid"], event.get("tid")) in streams:
            times[re.sub(r"(_+\d+)+$", "", event["name"])[:80]].append(event["dur"])
    found = [Kernel(name=name, count=len(each), microseconds=sum(each)) for name, each in times.items()]
    return sorted(found, key=lambda one: -one.microseconds)
