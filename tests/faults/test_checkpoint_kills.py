"""A run that saves is killed at any moment, and the next one finds the state of one step, whole.

This file is also the program that is killed: `test_checkpoint_kills.py FOLDER` goes on from what is in FOLDER and saves
after every step, for ever. The state is a function of the step, so that all of a checkpoint can be held against it.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX is imported
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import note, seeds
from jax.sharding import NamedSharding, PartitionSpec

from ponente.store.checkpoint import CheckpointError, begin_save, load, newest, step_path, whole_checkpoints
from ponente.store.paths import PRIVATE_MARK
from ponente.store.volume import is_no_space
from ponente.train.checkpointer import Checkpointer, CheckpointerConfig, KeepConfig

RUN = "killed"
PERMANENT_EVERY = 4


def config_in(folder: str) -> CheckpointerConfig:
    return CheckpointerConfig(base_path=folder, keep=(KeepConfig(every=PERMANENT_EVERY),))


def state_of(step: int) -> dict[str, jax.Array]:
    """Arrays of many sizes, one of them over eight devices, each element changed by every step."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    spread = NamedSharding(mesh, PartitionSpec("data", "model"))
    return {
        "step": jnp.int32(step),
        "model.embedding": jnp.arange(1 << 20, dtype=jnp.float32) + step,
        "model.w": jax.device_put(jnp.full((256, 256), float(step)), spread),
        "optimizer.mu": jnp.full((64, 512), step, jnp.bfloat16),
        "key": jax.random.fold_in(jax.random.key(0), step),
    }


def bits(array: jax.Array) -> bytes:
    plain = jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    return np.asarray(plain).tobytes()


def expect_state(path: str, step: int) -> None:
    """Checks that the checkpoint at `path` is the state after `step` steps."""
    expected = state_of(step)
    found = load(path, {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in expected.items()})
    for name, array in expected.items():
        assert bits(found[name]) == bits(array), f"{name} in {path} is not of its step"


def train_for_ever(folder: str) -> None:
    config = config_in(folder)
    path = config.newest(RUN)
    step = int(load(path, {"step": jax.ShapeDtypeStruct((), jnp.int32)})["step"]) if path else 0
    checkpointer = Checkpointer(config, RUN, step)
    while True:
        step += 1
        checkpointer.save(step, state_of(step), {"step": step})
        print("saving", step, flush=True)


@pytest.mark.parametrize("seed", seeds(3, soak=20))  # two kills each
def test_a_run_killed_while_it_saves_leaves_only_whole_checkpoints(seed: int, tmp_path: Path) -> None:
    draw, folder, newest_step = random.Random(seed), tmp_path / RUN, 0
    for _ in range(2):
        command = [sys.executable, __file__, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(draw.randint(1, 6)):
            if not process.stdout.readline():
                break
        time.sleep(draw.random() * 0.1)
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
        found = whole_checkpoints(str(folder))
        leftovers = [path for path in folder.iterdir() if path.name.startswith(PRIVATE_MARK)]
        note("run killed during a save", phase="a save unfinished" if leftovers else "between saves")
        assert newest(str(folder)) == (step_path(str(folder), max(found)) if found else None)
        assert max(found, default=0) >= newest_step, "a checkpoint that was whole is gone"
        newest_step = max(found, default=0)
        assert [step for step in range(PERMANENT_EVERY, newest_step + 1, PERMANENT_EVERY) if step not in found] == []
        for step, metadata in found.items():
            assert metadata.is_temporary == bool(step % PERMANENT_EVERY)
            expect_state(step_path(str(folder), step), step)
    Checkpointer(config_in(str(tmp_path)), RUN, newest_step).finish()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(PRIVATE_MARK)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes; the state needs four."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_clearly_and_the_next_save_finds_room(small_disk: Path) -> None:
    path = step_path(str(small_disk), 1)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        begin_save(path, state_of(1), {}).wait()
    assert is_no_space(caught.value)
    assert path in str(caught.value)
    assert "Free some space" in str(caught.value)
    assert list(small_disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    begin_save(path, state_of(1), {}).wait()
    expect_state(path, 1)
    note("disk full", phase="during a checkpoint")


def test_a_run_on_a_full_disk_keeps_its_last_checkpoint_and_says_so_at_the_next_call(small_disk: Path) -> None:
    checkpointer = Checkpointer(config_in(str(small_disk)), RUN, 0)
    checkpointer.save(1, {"step": jnp.int32(1)}, {})
    checkpointer.save(2, state_of(2), {})
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpointer.save(3, state_of(3), {})
    checkpointer.finish()
    assert list(whole_checkpoints(str(small_disk / RUN))) == [1]


if __name__ == "__main__":
    train_for_ever(sys.argv[1])
