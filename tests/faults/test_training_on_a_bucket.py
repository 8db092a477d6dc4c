"""A run whose caches, checkpoints and metrics are in a bucket: killed at any moment, it goes on exactly."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from harness import note, seeds
from quick import QUICK
from test_processes import CONFIG, STEPS, codes
from test_processes import Site as Processes

from ponente.store.checkpoint import load, read_metadata, whole_checkpoints
from ponente.store.metrics import read_metrics
from ponente.store.volume import volume_of


class Site:
    """A config whose places are all in a bucket, but for the source of its data."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self.folder, self.bucket = folder, bucket
        generator = np.random.default_rng(0)
        documents = [generator.integers(0, 128, generator.integers(5, 90)).astype(np.int32) for _ in range(200)]
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": documents}), folder / "ids.parquet")
        text = CONFIG.format(folder=bucket, steps=STEPS).replace(f"{bucket}/ids", f"{folder}/ids")
        (folder / "config.yaml").write_text(text)

    def start(self, run: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ponente", "train", "--config_path", str(self.folder / "config.yaml")]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
        with (self.folder / f"{run}.txt").open("ab") as out:
            flags = ["--trainer.id", run, "--trainer.jax_compilation_cache_dir", str(self.folder / "compiled")]
            return subprocess.Popen([*command, *flags], stdout=out, stderr=out, env=environment)

    def said(self, run: str) -> str:
        return (self.folder / f"{run}.txt").read_text()

    def finish(self, run: str) -> None:
        assert self.start(run).wait(timeout=200) == 0, self.said(run)

    def losses(self, run: str) -> list[float]:
        rows = read_metrics(f"{self.bucket}/logs/{run}")
        return [row.metrics["train/loss"] for row in rows if "train/loss" in row.metrics]

    def state(self, run: str) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        place = f"{self.bucket}/checkpoints/{run}/step-{STEPS}"
        records = read_metadata(place).arrays
        targets = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in records.items()}
        return {name: np.asarray(array) for name, array in load(place, targets).items()}


@pytest.mark.parametrize("seed", seeds(1, soak=10))
def test_a_run_killed_at_any_moment_ends_bit_for_bit_like_one_that_was_not(
    seed: int, bucket: str, tmp_path: Path
) -> None:
    site, draw = Site(tmp_path, bucket), random.Random(seed)
    whole = site.start("whole")
    killed = site.start("killed")
    time.sleep(draw.uniform(4.0, 12.0))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    there = whole_checkpoints(f"{bucket}/checkpoints/killed")
    note("training killed, all in a bucket", phase=f"{len(there)} checkpoints saved")
    assert whole.wait(timeout=200) == 0, site.said("whole")
    site.finish("killed")
    assert site.losses("killed") == site.losses("whole") and len(site.losses("whole")) == STEPS
    for name, array in site.state("whole").items():
        np.testing.assert_array_equal(site.state("killed")[name], array, err_msg=name)
    log = f"{bucket}/logs/killed.log"
    assert "parameters" in volume_of(log).read(log).decode()


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, soak=3))
def test_two_processes_that_save_into_a_bucket_go_on_exactly_when_one_was_killed(
    seed: int, bucket: str, tmp_path: Path
) -> None:
    site = Processes(tmp_path, bucket)
    assert codes(site.start_all("whole")) == [0, 0], site.out("whole", 0) + site.out("whole", 1)
    killed = site.start_all("killed")
    until = time.monotonic() + 100
    while not whole_checkpoints(f"{bucket}/checkpoints/killed"):
        assert time.monotonic() < until and killed[1].poll() is None, site.out("killed", 0)
        time.sleep(0.05)
    killed[seed % 2].send_signal(signal.SIGKILL)
    codes(killed)
    note("process of two killed, all in a bucket", phase="while training")
    assert codes(site.start_all("killed")) == [0, 0], site.out("killed", 0) + site.out("killed", 1)
    assert "going on at step" in site.out("killed", 0)
    assert site.losses("killed") == site.losses("whole") and len(site.losses("whole")) == STEPS
