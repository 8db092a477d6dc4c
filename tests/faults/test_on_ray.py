"""A Ray cluster of two nodes: the same outputs as a local run, whatever is killed, and wherever it was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import faint
import hosts
import lanes
import pytest
import spread
from harness import SOAK, Ended, Reference, Site, note, seeds, wait_until
from quick import QUICK

from ponente.executor.records import Outcome
from ponente.store.metrics import read_metrics

DEVICES = "--xla_force_host_platform_device_count=2"
RAY = {"PONENTE_HEARTBEAT_SECONDS": "0.5", "RAY_AUTH_MODE": "disabled"}


class TwoNodes:
    """A cluster of this test run: a first node, which stays, and a second, which tests may kill."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("two_nodes.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "XLA_FLAGS": f"{DEVICES} {QUICK}",
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # `python` of jobs
                },
            )
        told = self._line()
        assert told.startswith("{"), log.read_text()
        self.address, self.job_server = json.loads(told).values()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def do(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._line().strip() == "done"

    def end(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    pytest.importorskip("ray")
    made = TwoNodes(tmp_path_factory.mktemp("ray") / "log")
    yield made
    made.end()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What the graph makes on this machine without Ray."""
    site = Site(Path(lanes.__file__), tmp_path_factory.mktemp("alone") / "site")
    began = time.monotonic()
    ended = site.run()
    assert ended.code == 0, ended
    outputs = {step.name: site.published(step) or {} for step in lanes.STEPS}
    assert all(outputs.values())
    return Reference(outputs, time.monotonic() - began)


@pytest.fixture
def site(nodes: TwoNodes, root: Path) -> Iterator[Site]:
    nodes.do("restore")
    made = Site(Path(lanes.__file__), root / "site")
    yield made
    made.kill_everything()


def expect_done(site: Site, ended: Ended, alone: Reference, count: int = lanes.LANES) -> None:
    """Checks that so many lanes, or the whole graph, are done, and are what they are without Ray."""
    assert ended.code == 0, ended
    whole = count == lanes.LANES
    assert site.expect_only_whole_results(lanes.joined, alone.outputs) == (33 if whole else 4 * count)
    assert len(site.traces("shard-*")) == count * lanes.SHARDS


def test_outputs_are_those_of_a_local_run_and_no_shard_is_made_twice(
    nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    ended = site.run("--cluster", nodes.address, **RAY)
    expect_done(site, ended, alone)
    assert set(site.traces("shard-*").values()) == {1}
    again = site.run("--cluster", nodes.address, **RAY)
    assert again.code == 0 and "every step was a hit: 33 steps" in again.out, again


FEW = lanes.LANES if os.environ.get(SOAK) else 2  # lanes that are run where something is killed
ONLY = ("--run_only", f"lanes/[0-{FEW - 1}]/" if FEW < lanes.LANES else "lanes/")


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_a_node_that_dies_in_a_map_or_a_step_is_done_without(
    seed: int, nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    program = site.start("--cluster", nodes.address, *ONLY, **RAY)
    wait_until(lambda: site.traces("shard-*"), "a shard was begun")
    time.sleep(random.Random(seed).uniform(0.0, 2.0))
    nodes.do("kill")
    note("node of a Ray cluster killed", phase="in maps and steps")
    expect_done(site, program.wait(), alone, FEW)
    assert sum(site.traces("shard-*").values()) <= FEW * lanes.SHARDS + 4  # what was in work there


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_a_driver_that_dies_leaves_its_steps_running_and_the_next_one_waits_for_them(
    seed: int, nodes: TwoNodes, site: Site, alone: Reference
) -> None:
    program = site.start("--cluster", nodes.address, *ONLY, **RAY)
    wait_until(lambda: site.traces("shard-*"), "a shard was begun")
    time.sleep(random.Random(50 + seed).uniform(0.0, 2.0))
    program.kill()
    program.wait()
    note("driver of a Ray cluster killed", phase="in maps and steps")
    expect_done(site, site.run("--cluster", nodes.address, *ONLY, **RAY), alone, FEW)
    assert set(site.traces("shard-*").values()) == {1}  # what ran went on


@pytest.fixture
def wide(nodes: TwoNodes, root: Path) -> Iterator[Site]:
    nodes.do("restore")
    made = Site(Path(spread.__file__), root / "wide")
    yield made
    made.kill_everything()


def expect_squares(site: Site, ended: Ended) -> None:
    assert ended.code == 0, ended
    files = {f"squares/{number:05d}.txt": str(number).encode() for number in range(spread.SHARDS)}
    squares = json.dumps([number**2 for number in range(spread.SHARDS)]).encode()
    assert site.published(spread.squares) == {"squares.json": squares, **files}


def elsewhere(site: Site, least: int) -> bool:
    """Whether so many shards were begun by workers that are not the step's own."""
    return site.traces("elsewhere").get("elsewhere", 0) >= least


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_a_map_takes_on_workers_elsewhere_and_goes_on_when_their_node_dies(
    seed: int, nodes: TwoNodes, wide: Site
) -> None:
    program = wide.start("--cluster", nodes.address, **RAY)
    wait_until(lambda: elsewhere(wide, random.Random(seed).randint(2, 12)), "workers elsewhere had begun")
    nodes.do("kill")
    wide.leave(spread.ENOUGH)
    note("node of a Ray cluster killed", phase="in a map that is spread")
    expect_squares(wide, program.wait())
    assert sum(wide.traces("shard-*").values()) <= spread.SHARDS + 4  # what was in work there


def test_a_driver_that_is_asked_to_stop_stops_its_step_and_the_next_one_goes_on(nodes: TwoNodes, wide: Site) -> None:
    program = wide.start("--cluster", nodes.address, **RAY)
    wait_until(lambda: elsewhere(wide, 3), "workers elsewhere had begun")
    program.kill(signal.SIGTERM)
    ended = program.wait()
    assert ended.code == 75, ended
    [release] = wide.releases(spread.squares)
    assert release.outcome is Outcome.PREEMPTED, release
    wide.leave(spread.ENOUGH)
    expect_squares(wide, wide.run("--cluster", nodes.address, **RAY))
    assert sum(wide.traces("shard-*").values()) <= spread.SHARDS + 8


def test_shards_that_fail_elsewhere_are_set_aside_with_their_errors(nodes: TwoNodes, root: Path) -> None:
    nodes.do("restore")
    site = Site(Path(faint.__file__), root / "faint")
    ended = site.run("--cluster", nodes.address, **RAY)
    assert ended.code == 0, ended
    published = site.published(faint.fainting)
    assert published is not None
    found = json.loads(published["found.json"])
    assert set(found["values"]) == {"levante"}
    assert found["errors"] and len(found["values"]) + len(found["errors"]) == faint.SHARDS
    assert all("ValueError: not with levante at my back" in error for error in found["errors"])


@pytest.mark.parametrize(
    ("way", "times", "code", "rounds"), [("errs", 0, 1, 3), ("preempted", 3, 0, 4)], ids=["errors", "preemptions"]
)
def test_a_gang_begins_again_often_after_preemptions_and_seldom_after_errors(
    way: str, times: int, code: int, rounds: int, nodes: TwoNodes, tmp_path: Path
) -> None:
    nodes.do("restore")
    command = [sys.executable, str(Path(lanes.__file__).with_name("gangs.py")), str(tmp_path), way, str(times)]
    variables = {**os.environ, **RAY, "PONENTE_CLUSTER": nodes.address}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=variables)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "begun-1").read_text() == "x" * rounds
    if code:
        assert "process 1: exit code 3" in done.stderr and "there is no wind" in done.stderr, done.stderr


def test_a_cache_that_is_built_on_a_cluster_is_that_of_this_machine(
    nodes: TwoNodes, tiny_texts: list[str], tiny_tokenizer: str, tmp_path: Path
) -> None:
    nodes.do("restore")
    for number in range(200):  # more than are joined to one unit of work
        lines = [json.dumps({"text": f"{number} {text}"}) for text in tiny_texts]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    built = {}
    for way, flags in (("alone", ()), ("cluster", ("--cluster", nodes.address, "--workers", "3"))):
        data = {"tokenizer": tiny_tokenizer, "train_urls": [f"{tmp_path}/*.jsonl"], "cache_dir": f"{tmp_path}/{way}"}
        (tmp_path / "config.yaml").write_text(json.dumps({"data": data}))
        ponente("cache-dataset", "--config_path", str(tmp_path / "config.yaml"), *flags)
        built[way] = {
            str(path.relative_to(tmp_path / way)): path.read_bytes()
            for path in (tmp_path / way).rglob("*")
            if path.is_file() and ".configs" not in path.parts  # where it was built
        }
    assert len([name for name in built["alone"] if name.endswith("zarr.json")]) > 2  # segments
    assert built["alone"] and built["cluster"] == built["alone"]


def test_a_cluster_of_this_machine_is_started_for_trying_out(tmp_path: Path) -> None:
    site = Site(Path(hosts.__file__), tmp_path / "local")
    ended = site.run("--cluster", "local", "--run_only", "hosts/ids", **RAY)
    assert ended.code == 0, ended
    assert site.published(hosts.ids) is not None


class Training:
    """A site of the graph that trains over two hosts."""

    def __init__(self, root: Path) -> None:
        self.site = Site(Path(hosts.__file__), root)

    @property
    def state(self) -> Path:
        return Path(self.site.folder(hosts.model).path) / "state"

    @property
    def losses(self) -> list[float]:
        rows = read_metrics(str(self.state / "logs" / "model"))
        return [row.metrics["train/loss"] for row in rows if "train/loss" in row.metrics]

    @property
    def weights(self) -> bytes:
        published = self.site.published(hosts.model)
        assert published is not None
        return published["hf/model.safetensors"]

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.state.glob("logs/process-*.txt")))


@pytest.fixture(scope="module")
def trained(nodes: TwoNodes, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training over two hosts that nobody disturbed."""
    nodes.do("restore")
    whole = Training(tmp_path_factory.mktemp("trained") / "site")
    ended = whole.site.run("--cluster", nodes.address, **RAY)
    assert ended.code == 0, f"{ended}\n{whole.logs()}"
    assert len(whole.losses) == hosts.STEPS
    return whole


@pytest.mark.parametrize("seed", seeds(1, soak=5))
def test_a_training_over_two_hosts_of_which_one_dies_ends_bit_for_bit_like_another(
    seed: int, nodes: TwoNodes, trained: Training, root: Path
) -> None:
    killed = Training(root / "site")
    program = killed.site.start("--cluster", nodes.address, **RAY)
    after = 5 * random.Random(seed).randint(1, hosts.STEPS // 5 - 2)
    wait_until((killed.state / "checkpoints" / "model" / f"step-{after}").exists, "a checkpoint was saved")
    nodes.do("kill")
    note("host of a training killed", phase=f"after step {after}")
    nodes.do("restore")
    ended = program.wait()
    assert ended.code == 0, f"{ended}\n{killed.logs()}"
    assert killed.losses == trained.losses
    assert killed.weights == trained.weights
    killed.site.kill_everything()


SLICES = """
import os, sys
from ponente.cluster import TpuPodConfig
from ponente.cluster.launch import Task
from ponente.cluster.ray.gang import run_gang
def member(number, count, address):
    place = os.path.join(sys.argv[1], f"{number}-of-{count}")
    return Task(name="member", entry="os:mkdir", job=place, log_path=f"{place}.log")
run_gang(member, TpuPodConfig(tpu_type="v4-16"), [])
"""


def test_all_hosts_of_one_slice_of_tpus_are_taken(nodes: TwoNodes, tmp_path: Path) -> None:
    nodes.do("slices")
    try:
        command = [sys.executable, "-c", SLICES, str(tmp_path)]
        variables = {**os.environ, **RAY, "PONENTE_CLUSTER": nodes.address}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=variables)
        assert done.returncode == 0, done.stderr
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"0-of-2", "1-of-2"}
    finally:
        nodes.do("no slices")


NEEDY = """
from dataclasses import dataclass
from ponente.cluster import Environment
from ponente.executor import ExecutorStep, executor_main, this_output_path
@dataclass(frozen=True, kw_only=True)
class C:
    output_path: str = this_output_path("version.txt")
def write(config: C) -> None:
    import importlib.metadata
    open(config.output_path, "w").write(importlib.metadata.version("iniconfig"))
if __name__ == "__main__":
    executor_main([ExecutorStep(name="needy", fn=write, config=C(), env=Environment(packages=("iniconfig==1.1.1",)))])
"""


@pytest.mark.soak  # it installs one
def test_a_step_has_the_packages_that_it_names(nodes: TwoNodes, tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    command = [sys.executable, str(tmp_path / "needy.py"), "--prefix", str(tmp_path / "prefix")]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert alone.returncode == 2 and "pip install iniconfig==1.1.1" in alone.stderr, alone.stderr
    command += ["--cluster", nodes.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **RAY})
    assert done.returncode == 0, done.stdout + done.stderr
    [output] = (tmp_path / "prefix").glob("needy-*/output-*/version.txt")
    assert output.read_text() == "1.1.1"


def ponente(*arguments: str, code: int = 0) -> str:
    """What a command prints; of one that is refused, why."""
    command = [sys.executable, "-m", "ponente", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **RAY})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code == 2 else done.stdout


def test_a_tree_is_shipped_its_log_followed_and_its_exit_code_returned(nodes: TwoNodes, tmp_path: Path) -> None:
    nodes.do("restore")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "helper.py").write_text("WORD = 'shipped'\n")
    (tree / "x.py").write_text(
        "import helper, os, sys\nfrom dataclasses import dataclass\n"
        "from ponente.executor import ExecutorStep, executor_main, this_output_path\n"
        "@dataclass(frozen=True, kw_only=True)\nclass C:\n    token: str = os.environ['MY_TOKEN']\n"
        "    output_path: str = this_output_path('word.txt')\n"
        "def write(config: C) -> None:\n    print('in the step', config.token)\n"
        "    open(config.output_path, 'w').write(helper.WORD)\n"
        "if __name__ == '__main__':\n    executor_main([ExecutorStep(name='word', fn=write, config=C())])\n"
        "    sys.exit(7)\n"
    )
    prefix, server = tmp_path / "prefix", ("--address", nodes.job_server)
    variables = ("-e", "PONENTE_PREFIX", str(prefix), "--env_vars", "MY_TOKEN", "quite-a-secret")
    told = ponente(
        *("cluster", "submit", *server, *variables, "--working_dir", str(tree)), *("--", "python", "x.py"), code=7
    )
    assert "[1/1] done   word" in told
    [output] = prefix.glob("word-*/output-1/word.txt")
    assert output.read_text() == "shipped"
    stored = b"".join(path.read_bytes() for path in prefix.rglob("*") if path.is_file())
    assert b"quite-a-secret" not in stored and b"in the step ***" in stored
    [listed] = [line for line in ponente("cluster", "list", *server).splitlines() if "x.py" in line]
    assert "FAILED" in listed
    assert "[1/1] done   word" in ponente("cluster", "logs", *server, listed.split()[0])
    assert "has ended" in ponente("cluster", "stop", *server, listed.split()[0])
    sleeping = ponente("cluster", "submit", *server, "--no_wait", "--", "sleep", "600").strip()
    assert sleeping in ponente("cluster", "list", *server)
    wait_until(lambda: "RUNNING" in ponente("cluster", "list", *server), "the job began")
    assert "asked" in ponente("cluster", "stop", *server, sleeping)
    assert "found no job 'none'" in ponente("cluster", "logs", *server, "none", code=2)
