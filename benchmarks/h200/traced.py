"""Which kernels ran on a GPU, and how long each took there, by JAX's profiler."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ran:
    """A kernel that ran."""

    kernel: str
    operation: str  # of XLA's program
    source: str  # the part of JAX's program
    start: float
    milliseconds: float


def read(file: Path) -> Iterator[Ran]:
    """What ran on the GPU, of a profile."""
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(str(file)).planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        stats = dict(event.stats)
                        operation, source = str(stats.get("hlo_op", "")), str(stats.get("name", stats.get("tf_op", "")))
                        yield Ran(event.name, operation, source, event.start_ns / 1e6, event.duration_ns / 1e6)


def traced(run: Callable[[], Any]) -> dict[str, list[float]]:
    """Milliseconds of each kernel of a run, by name, the longest together first; numbers behind a name are left out."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        ran = list(read(file))
    times = defaultdict(list)
    for one in ran:
        times[re.sub(r"(_+\d+)+$", "", one.kernel)[:80]].append(one.milliseconds)
    return dict(sorted(times.items(), key=lambda one: -sum(one[1])))
