"""The most memory that a command and all its descendants held at one time.

In:   a command and its arguments, run to its end.
Out:  its output; then a line of JSON: peak_bytes, the highest sum of proportional set sizes that was seen (a page that
      processes share counts once), high_water_bytes, the sum of each process's highest resident size, and samples.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

PAUSE_SECONDS = 0.01


def main() -> None:
    process = subprocess.Popen(sys.argv[1:])
    peak, samples = 0, 0
    high_water: dict[int, int] = {}
    while process.poll() is None:
        members = descendants(process.pid)
        peak = max(peak, sum(read_size(pid, "smaps_rollup", "Pss:") for pid in members))
        for pid in members:
            high_water[pid] = max(high_water.get(pid, 0), read_size(pid, "status", "VmHWM:"))
        samples += 1
        time.sleep(PAUSE_SECONDS)
    figures = {"peak_bytes": peak, "high_water_bytes": sum(high_water.values()), "samples": samples}
    print(json.dumps(figures))
    sys.exit(process.returncode)


def descendants(root: int) -> set[int]:
    """The process and those that descend from it, by /proc."""
    parents = {int(folder.name): parent_of(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()}
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return members


def parent_of(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def read_size(pid: int, file: str, field: str) -> int:
    """The bytes that a file of /proc gives for the field; 0 when the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main()
