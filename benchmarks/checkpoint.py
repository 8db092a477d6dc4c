"""Our checkpoints against Orbax's: saving, loading, host memory, size, and what twenty kills leave behind.

Run:  .venv/bin/python benchmarks/checkpoint.py [--orbax] [--help]
In:   a state of 500 MB, the f32 weights and Adam moments of a small Llama, on the CPU, saved as a training loop does.
      With --orbax its CheckpointManager, as it comes and without compression, from an environment of its own.
Out:  a table, and last a line of JSON: ours, and Orbax's (as it comes) / ours. Kills strike saves of a smaller state.
Each pass is a process of its own, which this file runs on itself (`--part`). CPU seconds are of all threads.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

OURS, ORBAX, ORBAX_PLAIN = "ponente", "orbax", "orbax, plain"
ORBAX_FOLDER = Path.home() / ".cache" / "ponente-bench" / "orbax"
ORBAX_PINS = ["orbax-checkpoint==0.12.8", "jax==0.10.2", "numpy==2.4.6", "tensorstore==0.1.86"]
CODECS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "lz4, shuffled": [
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
        }
    ],
    "zstd 1": [{"name": "zstd", "configuration": {"level": 1}}],
}
KILLED_WIDTH = 128  # a state of 60 MB
FACTOR = 3  # what a step makes of every element, so that it stays as random as it is
COLUMNS = {
    "blocks_seconds": "until the call returns, s",
    "step_done_seconds": "until the next step is done, s",
    "save_seconds": "until whole, s",
    "save_cpu_seconds": "save, CPU s",
    "peak_bytes": "peak host memory above the state's, in states",
    "growth_bytes": "growth from save 4 to the last, MB",
    "load_seconds": "load, s",
    "load_cpu_seconds": "load, CPU s",
    "disk_bytes": "on disk, in states",
}


def main() -> None:
    flags = parse_flags()
    if flags.part:
        print(json.dumps(PARTS[flags.part](flags)))
        return
    contestants = [OURS]
    if flags.orbax and orbax_is_installed():
        contestants += [ORBAX, ORBAX_PLAIN]
    with tempfile.TemporaryDirectory(prefix="ponente-bench-", dir=flags.folder) as work:
        figures = measured(contestants, Path(work), flags)
        print_table(figures)
        for name in contestants[:2]:
            figures[name] |= killed(name, Path(work), flags)
        if flags.codecs:
            print_codecs(part("codecs", OURS, Path(work), flags))
    ours = figures[OURS]
    summary = {name: ours[name] for name in (*COLUMNS, "kills", "torn")}
    if ORBAX in figures:
        ratios = ("step_done_seconds", "save_seconds", "save_cpu_seconds", "peak_bytes", "load_seconds", "disk_bytes")
        summary["orbax_vs_ours"] = {name: round(figures[ORBAX][name] / ours[name], 2) for name in ratios}
        summary["orbax_torn"] = figures[ORBAX]["torn"]
    print(json.dumps(summary))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--orbax", action="store_true", help="measure Orbax too (400 MB to install, once)")
    parser.add_argument("--codecs", action="store_true", help="also time ways to compress the state")
    parser.add_argument("--repeats", type=int, default=3, help="processes; medians count (default: %(default)s)")
    parser.add_argument("--saves", type=int, default=8, help="of each process (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="of each contestant (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="of the model (default: %(default)s)")
    parser.add_argument("--folder", help="where to write; by default a temporary one")
    parser.add_argument("--part", choices=sorted(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    return parser.parse_args()


# The contestants, each with the state of a step: save(step, state) -> wait, newest() -> step, load(step, like)

State = dict[str, Any]


def state_of(width: int, step: int = 0) -> State:
    """Weights and moments of a Llama of eight layers; every array says which step it is of in its first element."""
    import jax
    import jax.numpy as jnp

    layers, hidden, vocabulary = 8, width * 11 // 4 // 32 * 32, 32000
    shapes = {
        "embedding": (vocabulary, width),
        **{f"attention.w_{name}": (layers, width, width) for name in ("q", "k", "v", "out")},
        **{f"mlp.w_{name}": (layers, width, hidden) for name in ("gate", "up", "down")},
        **{f"norm.{name}": (layers, width) for name in ("attention", "mlp")},
        "norm.final": (width,),
    }
    state: State = {"step": jnp.int32(step)}
    for number, (name, shape) in enumerate(shapes.items()):
        keys = jax.random.split(jax.random.key(number), 3)
        mu = 1e-3 * jax.random.normal(keys[1], shape)
        state[f"model.{name}"] = 0.02 * jax.random.normal(keys[0], shape)
        state[f"optimizer.0.mu.{name}"] = mu
        state[f"optimizer.0.nu.{name}"] = jnp.square(mu) + 1e-8 * jax.random.uniform(keys[2], shape)
    return {name: at_step(array, step) for name, array in state.items()}


def at_step(array: Any, step: int) -> Any:
    return array if not array.ndim else array.at[(0,) * array.ndim].set(step)


class Ours:
    """As `train/checkpointer.py` uses the store."""

    def __init__(self, folder: Path) -> None:
        from ponente.store import checkpoint

        self._store, self._folder, self._staging = checkpoint, str(folder), checkpoint.Staging()
        checkpoint.remove_leftovers(self._folder)

    def save(self, step: int, state: State) -> Callable[[], None]:
        def remove_older() -> None:
            for older in self._store.whole_checkpoints(self._folder):
                if older < step:
                    self._store.remove(self._store.step_path(self._folder, older))

        path = self._store.step_path(self._folder, step)
        return self._store.begin_save(path, state, {}, staging=self._staging, when_whole=remove_older).wait

    def newest(self) -> int | None:
        path = self._store.newest(self._folder)
        return self._store.read_metadata(path).step if path else None

    def load(self, step: int, like: State) -> State:
        return self._store.load(self._store.step_path(self._folder, step), like)


class Orbax:
    """CheckpointManager, asynchronous, keeping one."""

    def __init__(self, folder: Path, *, use_compression: bool) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        handler = None if use_compression else ocp.PyTreeCheckpointHandler(use_compression=False)
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handler)
        self._save = ocp.args.StandardSave if use_compression else ocp.args.PyTreeSave

    def save(self, step: int, state: State) -> Callable[[], None]:
        self._manager.save(step, args=self._save(state))
        wait: Callable[[], None] = self._manager.wait_until_finished
        return wait

    def newest(self) -> int | None:
        step: int | None = self._manager.latest_step()
        return step

    def load(self, step: int, like: State) -> State:
        if self._save is self._ocp.args.StandardSave:
            restored: State = self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
        else:
            arguments = self._ocp.checkpoint_utils.construct_restore_args(like)
            restored = self._manager.restore(step, args=self._ocp.args.PyTreeRestore(like, restore_args=arguments))
        return restored


def contestant(flags: argparse.Namespace) -> Ours | Orbax:
    folder = Path(flags.folder) / "checkpoints"
    return Ours(folder) if flags.contestant == OURS else Orbax(folder, use_compression=flags.contestant == ORBAX)


# The parts, each in a process of its own


def save_part(flags: argparse.Namespace) -> dict[str, Any]:
    """Saves again and again, the buffers donated to the next step as soon as the call returns."""
    import jax

    state = state_of(flags.width)
    step_forward = jax.jit(lambda state: {name: array * FACTOR for name, array in state.items()}, donate_argnums=0)
    state = jax.block_until_ready(step_forward(state))
    saver = contestant(flags)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    blocks, steps, waits, cpu, sizes = [], [], [], [], []
    for step in range(1, flags.saves + 1):
        began, used = time.perf_counter(), cpu_seconds()
        wait = saver.save(step, state)
        blocks.append(time.perf_counter() - began)
        if step < flags.saves:  # the last one is for the load to be compared with
            state = jax.block_until_ready(step_forward(state))
            steps.append(time.perf_counter() - began)
        wait()
        waits.append(time.perf_counter() - began)
        cpu.append(cpu_seconds() - used)
        sizes.append(memory("VmRSS"))
    total = sum(array.nbytes for array in state.values())
    stored = sum(path.stat().st_size for path in Path(flags.folder).rglob("*") if path.is_file())
    return {
        "arrays": len(state),
        "state_bytes": total,
        "first_blocks_seconds": blocks[0],
        "blocks_seconds": statistics.median(blocks[1:]),
        "step_done_seconds": statistics.median(steps[1:]),
        "save_seconds": statistics.median(waits[1:]),
        "save_cpu_seconds": statistics.median(cpu[1:]),
        "peak_bytes": (memory("VmHWM") - before) / total,
        "growth_bytes": (sizes[-1] - sizes[min(3, len(sizes) - 1)]) / 1e6,
        "disk_bytes": stored / total,
    }


def load_part(flags: argparse.Namespace) -> dict[str, Any]:
    """Loads the newest checkpoint onto the device, from files in the page cache, and looks whether it is right."""
    import jax
    import numpy as np

    expected = {name: np.asarray(array) for name, array in state_of(flags.width).items()}
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for name, array in expected.items()}
    saver = contestant(flags)
    step = saver.newest()
    assert step == flags.saves, f"the newest checkpoint is of step {step}"
    began, used = time.perf_counter(), cpu_seconds()
    loaded = jax.block_until_ready(saver.load(step, like))
    figures = {"load_seconds": time.perf_counter() - began, "load_cpu_seconds": cpu_seconds() - used}
    for name, array in expected.items():
        for _ in range(flags.saves):
            array = array * np.asarray(FACTOR, array.dtype)
        assert np.array_equal(array, np.asarray(loaded[name])), f"{name} differs"
    return figures


def endless_part(flags: argparse.Namespace) -> dict[str, Any]:
    """Saves until it is killed; says so on every line."""
    saver = contestant(flags)
    state = state_of(flags.width)
    step = saver.newest() or 0
    while True:
        step += 1
        wait = saver.save(step, {name: at_step(array, step) for name, array in state.items()} | {"step": state["step"]})
        print("saving", step, flush=True)
        wait()


def look_part(flags: argparse.Namespace) -> dict[str, Any]:
    """What a resumed run would see: the newest step, and whether all of it is of that step."""
    import jax
    import numpy as np

    state = state_of(flags.width)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for name, array in state.items()}
    saver = contestant(flags)
    step = saver.newest()
    if step is None:
        return {"step": 0, "fault": ""}
    try:
        loaded = saver.load(step, like)
    except Exception as error:
        return {"step": step, "fault": f"{type(error).__name__}: {error}"}
    wrong = [
        name
        for name, array in state.items()
        if array.ndim and not np.array_equal(np.asarray(at_step(array, step)), np.asarray(loaded[name]))
    ]
    return {"step": step, "fault": f"{len(wrong)} arrays differ" if wrong else ""}


def codecs_part(flags: argparse.Namespace) -> dict[str, Any]:
    """Writes and reads the state through TensorStore with each way to compress."""
    import numpy as np
    import tensorstore as ts

    state = {name: np.asarray(array) for name, array in state_of(flags.width).items()}
    total = sum(array.nbytes for array in state.values())
    figures = {}
    for codec, compression in CODECS.items():
        folder = Path(flags.folder) / "codec"
        plain = {"name": "bytes", "configuration": {"endian": "little"}}
        passes = []
        for _ in range(flags.repeats):
            shutil.rmtree(folder, ignore_errors=True)
            used = cpu_seconds()
            stores = []
            for name, array in state.items():
                metadata = {
                    "shape": array.shape,
                    "data_type": array.dtype.name,
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.shape or []}},
                    "codecs": [plain, *compression, {"name": "crc32c"}],
                }
                spec = {"driver": "zarr3", "kvstore": f"file://{folder}/{name}", "metadata": metadata}
                stores.append(ts.open(spec, create=True, context=ts.Context({"file_io_sync": False})).result())
                stores[-1].write(array).result()
            written = cpu_seconds()
            for store in stores:
                store.read().result()
            passes.append((written - used, cpu_seconds() - written))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        write, read = (statistics.median(column) for column in zip(*passes, strict=True))
        figures[codec] = {"write_cpu_seconds": write, "read_cpu_seconds": read, "disk": size / total}
    return figures


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "save": save_part,
    "load": load_part,
    "endless": endless_part,
    "look": look_part,
    "codecs": codecs_part,
}


def memory(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# The measuring side


def command(name: str, contestant_name: str, folder: Path, flags: argparse.Namespace) -> list[str]:
    python = sys.executable if contestant_name == OURS else str(ORBAX_FOLDER / "bin" / "python")
    given = ["--saves", str(flags.saves), "--width", str(flags.width), "--repeats", str(flags.repeats)]
    here = str(Path(__file__).resolve())
    return [python, here, "--part", name, "--contestant", contestant_name, "--folder", str(folder), *given]


def part(name: str, contestant_name: str, folder: Path, flags: argparse.Namespace) -> dict[str, Any]:
    done = subprocess.run(command(name, contestant_name, folder, flags), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{contestant_name}, {name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measured(contestants: list[str], work: Path, flags: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The medians over some processes, one of each contestant in turn, so that all meet the same neighbours."""
    passes: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(flags.repeats):
        for name, own in passes.items():
            folder = work / "pass"
            folder.mkdir()
            own.append(part("save", name, folder, flags) | part("load", name, folder, flags))
            figures = json.dumps({key: round(value, 3) for key, value in own[-1].items()})
            print(f"{name}, pass {number + 1} of {flags.repeats}: {figures}", file=sys.stderr)
            shutil.rmtree(folder)
    return {
        name: {key: round(statistics.median(one[key] for one in own), 3) for key in own[0]}
        for name, own in passes.items()
    }


def killed(name: str, work: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Kills a process that saves, again and again, and looks at what is there as the next run would."""
    folder = work / "killed"
    folder.mkdir()
    small = argparse.Namespace(**{**vars(flags), "width": KILLED_WIDTH})
    draw, faults, seen = random.Random(0), [], 0
    for number in range(flags.kills):
        process = subprocess.Popen(
            command("endless", name, folder, small), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        for _ in range(draw.randint(1, 2)):
            process.stdout.readline()
        time.sleep(draw.random())  # a save of this state takes about as long; it does nothing else
        process.kill()
        process.communicate()
        found = part("look", name, folder, small)
        if found["fault"] or found["step"] < seen:
            faults.append(f"kill {number + 1}: step {found['step']} after {seen}: {found['fault']}")
        seen = max(seen, found["step"])
    left = [path.name for path in (folder / "checkpoints").iterdir()]
    print(
        f"{name}: {flags.kills} kills, {len(faults)} bad checkpoints seen, newest step {seen}; {len(left)} names left"
    )
    for fault in faults:
        print(f"  {fault[:300]}")
    shutil.rmtree(folder)
    return {"kills": flags.kills, "torn": len(faults), "left_over": len(left)}


def orbax_is_installed() -> bool:
    """Installs it unless it is there; False, and the reason told, when that fails."""
    stamp, pins = ORBAX_FOLDER / "installed", " ".join(ORBAX_PINS)
    if stamp.is_file() and stamp.read_text() == pins:
        return True
    print(f"installing Orbax into {ORBAX_FOLDER} (once)", file=sys.stderr)
    python = str(ORBAX_FOLDER / "bin" / "python")
    commands = [
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(ORBAX_FOLDER)],
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *ORBAX_PINS],
    ]
    for one in commands:
        done = subprocess.run(one, capture_output=True, text=True)
        if done.returncode:
            print(f"{done.stderr[-2000:]}\nOrbax is left out; its ratios are missing.", file=sys.stderr)
            return False
    stamp.write_text(pins)
    return True


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    ours = figures[OURS]
    print(f"{ours['arrays']} arrays, {ours['state_bytes'] / 1e6:.0f} MB; medians")
    print(f"{'':<48}" + "".join(f"{name:>14}" for name in figures))
    for key, title in COLUMNS.items():
        print(f"{title:<48}" + "".join(f"{one[key]:>14.2f}" for one in figures.values()))


def print_codecs(figures: dict[str, Any]) -> None:
    print(f"{'compression':<24}{'write, CPU s':>14}{'read, CPU s':>14}{'on disk':>14}")
    for name, one in figures.items():
        print(f"{name:<24}{one['write_cpu_seconds']:>14.2f}{one['read_cpu_seconds']:>14.2f}{one['disk']:>14.3f}")


if __name__ == "__main__":
    main()
