"""A gang of two processes that come to an end: FOLDER, and `errs`, or `preempted` and how often."""

import os
import signal
import sys
import time
from pathlib import Path

from ponente.cluster import CpuOnly
from ponente.cluster.launch import Task
from ponente.cluster.ray.gang import GangError, run_gang


def member(number: int, count: int, address: str) -> Task:
    job = [*sys.argv[1:], str(number)]
    return Task(name=f"member {number}", entry="gangs:act", job=job, log_path=f"{sys.argv[1]}/{number}.log")


def act(job: list[str]) -> int:
    """The first waits; the second fails always, or is killed some times and then all is well."""
    folder, way, times, number = Path(job[0]), job[1], int(job[2]), job[3]
    begun = folder / f"begun-{number}"
    with begun.open("a") as file:
        file.write("x")
    is_well = way == "preempted" and len((folder / "begun-1").read_text() if number == "1" else "") > times
    if number == "0":
        deadline = time.monotonic() + 60
        while not (folder / "well").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    elif is_well:
        (folder / "well").touch()
    elif way == "errs":
        print("there is no wind")
        return 3
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    try:
        run_gang(member, CpuOnly(num_cpus=1, host_count=2), [])
    except GangError as error:
        sys.exit(str(error))
