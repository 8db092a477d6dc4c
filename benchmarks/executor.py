"""The executor against luigi, redun and snakemake, all timed as whole processes.

Run:  make bench-executor, or .venv/bin/python benchmarks/executor.py [--help]
In:   the workflows of executor_peers/; the peers pinned in peers.lock, installed into .venv-bench-peers on first use.
Out:  a table, and last a line of JSON: plan_10000_seconds (ours) and rerun_vs_best_peer (best peer's seconds / ours).
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKFLOWS = HERE / "executor_peers"
PEERS_LOCK = HERE / "peers.lock"
PEERS_VENV = HERE.parent / ".venv-bench-peers"
PEERS_PYTHON = PEERS_VENV / "bin" / "python"
PEERS = ("luigi", "redun", "snakemake")

CHAIN_STEPS = 1_000
PLAN_STEPS = 10_000

SNAKEMAKE_FLAGS = (
    "--quiet",
    "--nolock",
    "--force-use-threads",
    "--cores=2",
    "--scheduler=greedy",
    "--latency-wait=0",
    "--max-jobs-per-timespan=100000/1s",
    "--rerun-incomplete",  # lets a first run that was cut short go on
)

ASK_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message is for the one who runs it."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One executor with the 1,000 steps: run `command` in `folder`; the files matching `outputs` are its work."""

    name: str
    version: str
    command: tuple[str, ...]
    folder: Path
    outputs: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """Seconds of one contestant; `first_run` is None when it took more than the limit."""

    first_run: float | None
    reruns: list[float]


def main() -> None:
    flags = parse_flags()
    try:
        with tempfile.TemporaryDirectory(prefix="ponente-bench-") as work:
            benchmark(Path(work), flags)
    except BenchmarkError as error:
        sys.exit(f"BenchmarkError: {error}")


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, help="only these peers")
    parser.add_argument("--repeats", type=int, default=3, help="of every re-run and plan (default: %(default)s)")
    parser.add_argument(
        "--first_run_limit_seconds",
        type=float,
        default=600,
        help="a first run that takes longer is cut, shown as '> limit' and finished untimed (default: %(default)s)",
    )
    flags = parser.parse_args()
    if flags.repeats < 1:
        parser.error(f"--repeats is {flags.repeats}; give 1 or more")
    return flags


def benchmark(work: Path, flags: argparse.Namespace) -> None:
    versions, missing = peer_versions(flags.peers)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")  # snakemake's, which would else stay behind in the home folder
    print(f"machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, ", end="")
    print(f"Python {platform.python_version()} for all")

    ours = our_chains(work)
    contestants = [ours, *(peer_chains(name, version, work) for name, version in versions.items())]
    results = race(contestants, flags)
    print_race(contestants, results, missing, flags)

    plans, start = time_plan(work, flags.repeats)
    print()
    print(f"ponente's plan (--dry_run) of {PLAN_STEPS:,} committed steps with 100-field configs, seconds")
    print(f"  plan:                    best {min(plans):.2f}, median {statistics.median(plans):.2f}")
    print(f"  of it, start and import: best {min(start):.2f}, median {statistics.median(start):.2f}")
    print_starts(work, flags.repeats)

    best_peer = min(min(results[name].reruns) for name in versions)
    summary = {
        "plan_10000_seconds": round(min(plans), 3),
        "rerun_vs_best_peer": round(best_peer / min(results[ours.name].reruns), 3),
    }
    print(json.dumps(summary))


# The peers' environment


def peer_versions(peers: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Install what is missing; give the version of each peer that is there, and the reason for each that is not."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", PEERS_LOCK.read_text(), flags=re.MULTILINE))
    if not PEERS_PYTHON.exists() or installed_versions()["python"] != platform.python_version():
        note(f"making {PEERS_VENV.name}")
        run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(PEERS_VENV)], cwd=HERE)
    installed = installed_versions()
    missing = {}
    for name in peers:
        if installed.get(name) == pinned[name]:
            continue
        note(f"installing {name} {pinned[name]} into {PEERS_VENV.name} (once)")
        pip = [sys.executable, "-m", "pip", "--python", str(PEERS_PYTHON), "--disable-pip-version-check"]
        try:
            run([*pip, "install", "--quiet", "--constraint", str(PEERS_LOCK), name], cwd=HERE)
        except BenchmarkError as error:
            note(str(error))
            missing[name] = f"could not install {name} {pinned[name]} (see above)"
    versions = {name: pinned[name] for name in peers if name not in missing}
    if not versions:
        raise BenchmarkError(
            f"none of {', '.join(peers)} could be installed into {PEERS_VENV}; a comparison needs one peer or more.\n"
            "Check pip's messages above, and that pip finds the versions in benchmarks/peers.lock."
        )
    return versions, missing


def installed_versions() -> dict[str, str]:
    """What the peers' environment holds: its Python's version under "python", and each installed peer's."""
    answer = subprocess.run(
        [str(PEERS_PYTHON), "-c", ASK_VERSIONS, *PEERS], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise BenchmarkError(f"{PEERS_PYTHON} does not work.\n{answer.stderr}\nRemove {PEERS_VENV} and run again.")
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


# The 1,000 steps


def our_chains(work: Path) -> Contestant:
    folder = work / "ponente"
    script = str(WORKFLOWS / "ponente_chains.py")
    return Contestant(
        name="ponente",
        version=importlib.metadata.version("ponente"),
        command=(sys.executable, script, "--prefix", str(folder / "out"), "--launcher", "driver"),
        folder=folder,
        outputs="out/chain-*/**/done",
    )


def peer_chains(name: str, version: str, work: Path) -> Contestant:
    commands = {
        "luigi": (str(WORKFLOWS / "luigi_chains.py"),),
        "redun": (str(WORKFLOWS / "redun_chains.py"),),
        "snakemake": ("-m", "snakemake", "--snakefile", str(WORKFLOWS / "snakemake_chains.smk"), *SNAKEMAKE_FLAGS),
    }
    return Contestant(
        name=name,
        version=version,
        command=(str(PEERS_PYTHON), *commands[name]),
        folder=work / name,
        outputs="out/chain-*/step-*",
    )


def race(contestants: list[Contestant], flags: argparse.Namespace) -> dict[str, Result]:
    """First runs one after the other; then the re-runs in rounds, so that a busy minute meets everyone."""
    first_runs = {}
    for contestant in contestants:
        note(f"first run of {contestant.name}")
        first_runs[contestant.name] = time_first_run(contestant, flags.first_run_limit_seconds)
    reruns: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(1, flags.repeats + 1):
        note(f"re-runs, round {number} of {flags.repeats}")
        for contestant in contestants:
            reruns[contestant.name].append(time_rerun(contestant))
    return {name: Result(first_run=first_runs[name], reruns=reruns[name]) for name in first_runs}


def time_first_run(contestant: Contestant, limit_seconds: float) -> float | None:
    """Seconds of the first run, or None above the limit; in both cases all outputs are there afterwards."""
    contestant.folder.mkdir()
    seconds: float | None = None
    try:
        seconds = run(contestant.command, cwd=contestant.folder, timeout_seconds=limit_seconds)
    except subprocess.TimeoutExpired:
        note(f"{contestant.name} took more than {limit_seconds:g} s; it goes on untimed")
        run(contestant.command, cwd=contestant.folder)
    found = len(modification_times(contestant))
    if found != CHAIN_STEPS:
        raise BenchmarkError(
            f"the first run of {contestant.name} left {found} files {contestant.outputs}, not {CHAIN_STEPS}.\n"
            f"Run its workflow in benchmarks/executor_peers by hand: {' '.join(contestant.command)}"
        )
    return seconds


def time_rerun(contestant: Contestant) -> float:
    """Seconds of a run that finds everything done, which is checked: no output may change."""
    before = modification_times(contestant)
    seconds = run(contestant.command, cwd=contestant.folder)
    after = modification_times(contestant)
    if before != after:
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        raise BenchmarkError(
            f"the re-run of {contestant.name} ran steps again: {len(changed)} files changed, {changed[0]} first.\n"
            "A re-run must do nothing, or its time says nothing; look at its workflow in benchmarks/executor_peers."
        )
    return seconds


def modification_times(contestant: Contestant) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in contestant.folder.glob(contestant.outputs)}


def print_race(
    contestants: list[Contestant], results: dict[str, Result], missing: dict[str, str], flags: argparse.Namespace
) -> None:
    ours = results["ponente"]
    print()
    print(f"{CHAIN_STEPS:,} trivial steps (100 chains of 10, every step a target), seconds; re-runs of {flags.repeats}")
    columns = "{:<20}{:>12}{:>14}{:>16}{:>18}{:>17}"
    print(columns.format("", "first run", "best re-run", "median re-run", "first run / ours", "re-run / ours").rstrip())
    for contestant in contestants:
        result = results[contestant.name]
        first_run, first_ratio = f"> {flags.first_run_limit_seconds:g}", "-"
        if result.first_run is not None:
            first_run = f"{result.first_run:.2f}"
            first_ratio = f"{result.first_run / ours.first_run:.2f}" if ours.first_run else "-"
        row = columns.format(
            f"{contestant.name} {contestant.version}",
            first_run,
            f"{min(result.reruns):.3f}",
            f"{statistics.median(result.reruns):.3f}",
            first_ratio,
            f"{min(result.reruns) / min(ours.reruns):.2f}",
        )
        print(row if result.first_run is not None else f"{row}   (cut at the limit, then finished untimed)")
    for name, reason in missing.items():
        print(f"{name:<20}{reason}")


# The plan


def time_plan(work: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each plan of the 10,000 committed steps, and of each bare start of Python with our import."""
    folder = work / "plan"
    folder.mkdir()
    script = [sys.executable, str(WORKFLOWS / "ponente_plan.py"), "--prefix", str(folder / "out")]
    note(f"committing {PLAN_STEPS:,} steps (untimed)")
    run([*script, "--launcher", "driver"], cwd=folder)
    check_all_hits([*script, "--dry_run"], folder)
    note(f"planning {PLAN_STEPS:,} steps, {repeats} times")
    plans = [run([*script, "--dry_run"], cwd=folder) for _ in range(repeats)]
    starts = [run([sys.executable, "-c", "import ponente.executor"], cwd=folder) for _ in range(repeats)]
    return plans, starts


def print_starts(work: Path, repeats: int) -> None:
    """What a user waits for before anything happens: the help, and the plan of the six steps of the tutorial."""
    tutorial = Path(__file__).parents[1] / "experiments" / "tutorials" / "word_count.py"
    commands = {"ponente --help": ["--help"], "ponente plan of the tutorial": ["plan", str(tutorial)]}
    for name, arguments in commands.items():
        seconds = [run([sys.executable, "-m", "ponente", *arguments], cwd=work) for _ in range(repeats)]
        print(f"  {name}: best {min(seconds):.2f}, median {statistics.median(seconds):.2f}")


def check_all_hits(command: list[str], folder: Path) -> None:
    """Fail unless the plan names each of the steps as a hit."""
    listing = folder / "plan.txt"
    run(command, cwd=folder, stdout=listing)
    hits = set(re.findall(r"^\s*hit\s+(chain-\d+/step-\d+)\b", listing.read_text(), flags=re.MULTILINE))
    if len(hits) != PLAN_STEPS:
        raise BenchmarkError(
            f"the plan of {PLAN_STEPS} committed steps reports {len(hits)} of them as hits, and must report all.\n"
            f"Its last lines:\n{tail(listing)}"
        )


# Processes


def run(
    command: list[str] | tuple[str, ...], *, cwd: Path, timeout_seconds: float | None = None, stdout: Path | None = None
) -> float:
    """Wall-clock seconds of a process, from start to end; its output is dropped unless `stdout` names a file for it.

    Raises TimeoutExpired after killing the process and its children, BenchmarkError when it fails.
    """
    with tempfile.TemporaryDirectory(prefix="ponente-bench-log-") as logs:
        errors = Path(logs) / "stderr"
        with open(stdout or os.devnull, "wb") as out, open(errors, "wb") as err:
            start = time.perf_counter()
            process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=err, start_new_session=True)
            try:
                code = process.wait(timeout=timeout_seconds)
                seconds = time.perf_counter() - start
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code:
            raise BenchmarkError(f"exit code {code} from: {' '.join(command)}\nThe end of its stderr:\n{tail(errors)}")
    return seconds


def tail(file: Path, lines: int = 30) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


def note(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
