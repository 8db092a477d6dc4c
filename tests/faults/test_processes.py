"""Several processes that train one model: the numbers of one process, exact resume when one is killed, clear ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from harness import note, seeds
from quick import QUICK

from ponente.store.metrics import read_metrics

COUNT, DEVICES, STEPS = 2, 4, 12
CONFIG = """
data:
  tokenizer: passthrough
  vocab_size: 128
  cache_dir: {folder}/cache
  components: {{ids: {{source: {{train_urls: ["{folder}/ids.parquet"], validation_urls: ["{folder}/ids.parquet"]}},
    format: {{type: prebuilt}}, pack: concat}}}}
model: {{type: llama, max_seq_len: 32, hidden_dim: 32, intermediate_dim: 64, num_layers: 1, num_heads: 4}}
optimizer: {{learning_rate: 1e-2, warmup: 2}}
trainer: {{train_batch_size: 16, num_train_steps: {steps}, log_dir: {folder}/logs, steps_per_eval: 6,
  max_eval_batches: 2,
  checkpointer: {{base_path: {folder}/checkpoints, keep: [{{every: 4}}]}}, distributed: {{timeout: 60}}}}
hf_save_path: {folder}/hf
"""


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


class Site:
    """A folder with a config, and processes that train by it."""

    def __init__(self, folder: Path, bucket: str | None = None) -> None:
        self.folder = folder
        self.place = bucket or str(folder)  # of all that it makes
        random = np.random.default_rng(0)
        documents = [random.integers(0, 128, random.integers(5, 90)).astype(np.int32) for _ in range(200)]
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": documents}), folder / "ids.parquet")
        text = CONFIG.format(folder=self.place, steps=STEPS).replace(f"{self.place}/ids", f"{folder}/ids")
        (folder / "config.yaml").write_text(text)

    def start(
        self, run: str, *flags: str, devices: int, name: str = "one", launcher: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **(launcher or {}),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK}",
        }
        command = [sys.executable, "-m", "ponente", "train", "--config_path", str(self.folder / "config.yaml")]
        with (self.folder / f"{run}-{name}.txt").open("ab") as out:
            return subprocess.Popen([*command, "--trainer.id", run, *flags], stdout=out, stderr=out, env=environment)

    def launch_all(self, run: str) -> list[subprocess.Popen[bytes]]:
        """As torchrun would, by environment variables."""
        host, _, port = free_address().rpartition(":")
        common = {"MASTER_ADDR": host, "MASTER_PORT": str(int(port) - 1), "WORLD_SIZE": str(COUNT)}
        own = [{"RANK": str(index), "LOCAL_RANK": str(index), "LOCAL_WORLD_SIZE": str(COUNT)} for index in range(COUNT)]
        return [
            self.start(run, devices=DEVICES, name=str(index), launcher=common | own[index]) for index in range(COUNT)
        ]

    def start_all(self, run: str, *flags: str, only: tuple[int, ...] = (0, 1)) -> list[subprocess.Popen[bytes]]:
        common = ("coordinator_address", free_address()), ("num_processes", str(COUNT))
        words = [word for key, value in common for word in (f"--trainer.distributed.{key}", value)]
        return [
            self.start(
                run, *words, "--trainer.distributed.process_id", str(index), *flags, devices=DEVICES, name=str(index)
            )
            for index in only
        ]

    def out(self, run: str, name: str | int) -> str:
        return (self.folder / f"{run}-{name}.txt").read_text()

    def losses(self, run: str) -> list[float]:
        rows = read_metrics(f"{self.place}/logs/{run}")
        return [row.metrics["train/loss"] for row in rows if "train/loss" in row.metrics]

    def evaluated(self, run: str) -> list[float]:
        rows = read_metrics(f"{self.place}/logs/{run}")
        return [row.metrics["eval/loss"] for row in rows if "eval/loss" in row.metrics]

    def exported(self, run: str) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        from safetensors.numpy import load_file

        return load_file(self.folder / "hf" / run / f"step_{STEPS}" / "model.safetensors")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def codes(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.wait(timeout=120) for process in processes]


def test_two_processes_train_as_one_does_and_go_on_exactly_when_one_was_killed(site: Site) -> None:
    assert codes(site.start_all("two")) == [0, 0], site.out("two", 0) + site.out("two", 1)
    assert codes([site.start("one", "--trainer.mesh.axes", "{data: 8}", devices=8)]) == [0], site.out("one", "one")
    assert len(site.losses("two")) == STEPS
    np.testing.assert_allclose(site.losses("two"), site.losses("one"), rtol=1e-5)
    np.testing.assert_allclose(site.evaluated("two"), site.evaluated("one"), rtol=1e-5)
    for name, array in site.exported("two").items():
        np.testing.assert_allclose(array, site.exported("one")[name], atol=1e-5, err_msg=name)
    assert "loss" not in site.out("two", 1)  # one of them speaks

    processes = site.start_all("killed")
    until = time.monotonic() + 100
    while not (site.folder / "checkpoints" / "killed" / "step-4").exists():
        assert time.monotonic() < until and processes[1].poll() is None, site.out("killed", 0)
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGKILL)
    assert codes(processes) == [1, -signal.SIGKILL]
    note("process of two killed", phase="while training")
    assert re.search(r"process 1 is gone.*this process ends too. Start all again", site.out("killed", 0))
    assert codes(site.launch_all("killed")) == [0, 0], site.out("killed", 0) + site.out("killed", 1)
    assert re.search(r"going on at step (4|8)\b", site.out("killed", 0))
    assert site.losses("killed") == site.losses("two")
    assert site.evaluated("killed")[-1] == site.evaluated("two")[-1]


@pytest.mark.soak
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_stops_all_after_the_same_step(site: Site, signalled: int) -> None:
    steps = (
        "--trainer.num_train_steps",
        "4000",
        "--trainer.checkpointer.keep",
        "[]",
        "--trainer.steps_per_eval",
        "9999",
    )
    processes = site.start_all("stopped", *steps)
    until = time.monotonic() + 100
    while len(site.losses("stopped")) < 5:
        assert time.monotonic() < until and processes[1].poll() is None, site.out("stopped", 0)
        time.sleep(0.05)
    processes[signalled].send_signal(signal.SIGTERM)
    assert codes(processes) == [75, 75], site.out("stopped", 0) + site.out("stopped", 1)
    note("process of two asked to stop", phase=f"process {signalled}")
    [saved] = [
        int(path.name.removeprefix("step-")) for path in (site.folder / "checkpoints" / "stopped").glob("step-*")
    ]
    assert saved == len(site.losses("stopped"))
    ends = ("--trainer.num_train_steps", str(saved + 3), "--trainer.steps_per_eval", "9999")
    assert codes(site.start_all("stopped", *ends)) == [0, 0]
    assert f"going on at step {saved}" in site.out("stopped", 0)


GPT2 = "{type: gpt2, max_seq_len: 32, hidden_dim: 32, num_layers: 1, num_heads: 4}"


@pytest.mark.soak
@pytest.mark.parametrize("axes", ["{model: 2}", "{replica: 2, data: 4}", "{model: 8}"])
@pytest.mark.parametrize("at_once", ["-1", "1"])
@pytest.mark.parametrize("model", ["", GPT2], ids=["llama", "gpt2"])
def test_other_meshes_of_two_processes_train_as_those_of_one(site: Site, axes: str, at_once: str, model: str) -> None:
    config = site.folder / "config.yaml"
    if model:
        config.write_text(re.sub(r"model: \{type: llama.*", f"model: {model}", config.read_text()))
    flags = ("--trainer.mesh.axes", axes, "--trainer.per_device_parallelism", at_once)
    if "8" in axes and not model:
        flags = (*flags, "--model.num_heads", "8", "--model.num_kv_heads", "8")
    if "8" in axes and model:
        flags = (*flags, "--model.num_heads", "8")
    assert codes(site.start_all("two", *flags)) == [0, 0], site.out("two", 0) + site.out("two", 1)
    assert codes([site.start("one", *flags, devices=8)]) == [0], site.out("one", "one")
    np.testing.assert_allclose(site.losses("two"), site.losses("one"), rtol=1e-5)


START = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ponente.train.distributed import DistributedConfig, joined
address, index, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = DistributedConfig(coordinator_address=address, num_processes=count, process_id=index, timeout=60)
with joined(config, "starts") as gang:
    assert (gang.index, gang.count, jax.process_count()) == (index, count, count)
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    ones = jax.make_array_from_callback((len(jax.devices()),), split, lambda part: np.ones(1))
    print("sum", float(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)), flush=True)
"""


@pytest.mark.parametrize("seed", seeds(3, soak=20))
def test_processes_that_start_at_different_moments_find_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    address, processes = free_address(), []
    for index in random.permutation(COUNT):
        command = [sys.executable, "-c", START, address, str(index), str(COUNT)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        time.sleep(random.choice([0, 0, 0.3, 1.5]))
    said = [process.communicate(timeout=100)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * COUNT, said
    assert all("sum 4.0" in one for one in said)
    note("start of two processes", phase="in any order")


LOSES = """
import os, sys, time
from ponente.train.distributed import DistributedConfig, joined
address, index = sys.argv[1], int(sys.argv[2])
config = DistributedConfig(coordinator_address=address, num_processes=2, process_id=index, timeout=60)
with joined(config, "loses"):
    if index == 1:
        time.sleep(1)
        os._exit(9)
    raise RuntimeError("Gloo AllGather failed: Connection reset by peer")
"""


def test_a_process_whose_collective_fails_before_it_knows_of_a_loss_says_who_is_gone() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    start = [sys.executable, "-c", LOSES, free_address()]
    processes = [subprocess.Popen([*start, index], env=environment, stderr=subprocess.PIPE) for index in "01"]
    said = [process.communicate(timeout=100)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [1, 9], said
    assert "process 1 is gone" in said[0] and "Start all again" in said[0]
    assert "Traceback" not in said[0]


def test_what_is_refused_ends_all_processes_soon(site: Site) -> None:
    processes = site.start_all("refused", "--trainer.train_batch_size", "12")
    assert set(codes(processes)) <= {1, 2}  # its own refusal, or another process's
    said = site.out("refused", 0) + site.out("refused", 1)
    assert "found a batch of 12 rows for 8 devices" in said
    assert "Traceback" not in said and "Aborted" not in said


@pytest.mark.soak
def test_numbers_that_are_lost_end_all_processes(site: Site) -> None:
    began = time.monotonic()
    processes = site.start_all("lost", "--optimizer.learning_rate", "1e30", "--optimizer.warmup", "0")
    assert set(codes(processes)) <= {1, 2}
    assert "not finite" in site.out("lost", 0) + site.out("lost", 1)
    assert time.monotonic() - began < 100  # no waiting for a barrier of JAX's


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, soak=6))
def test_a_signal_before_the_first_step_ends_all(site: Site, seed: int) -> None:
    processes = site.start_all("early")
    time.sleep(float(np.random.default_rng(seed).uniform(1.5, 9)))
    processes[seed % 2].send_signal(signal.SIGTERM)
    found = codes(processes)
    note("process of two asked to stop", phase="at any moment")
    said = site.out("early", 0) + site.out("early", 1)
    allowed = {0, 75, -signal.SIGTERM, 1}
    if re.search(r"found 1 of 2 processes .*needed process 1 as well|found no process 0 at .*needed it there", said):
        allowed.add(2)  # it ended before it had come, and the other waited for it
    assert set(found) <= allowed, said
    assert codes(site.start_all("early")) == [0, 0]


def test_a_process_that_does_not_come_is_named(site: Site) -> None:
    for present, expected in ((0, "needed process 1 as well"), (1, "found no process 0 at 127.0.0.1")):
        [process] = site.start_all("missing", "--trainer.distributed.timeout", "1", only=(present,))
        assert process.wait(timeout=60) == 2
        assert expected in site.out("missing", present)
    assert not (site.folder / "checkpoints").exists()
