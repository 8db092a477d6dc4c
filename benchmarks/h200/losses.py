"""Do fast kernels, and products in 8 bits, train like plain ones? Losses of runs on the same real text, step by step.

Run:  python benchmarks/h200/losses.py [--runs fast again plain] [--shape small150m] [--rows 64] [--steps 200]
      [--kept FOLDER] [--picture FILE.svg] [--text FILES] [--tokenizers FOLDER]      (needs a GPU)
Out:  how far each run's losses are from those of the first one, and their median step; a picture of the curves; and
      last a line of JSON. Runs: fast, as users run it; again, the same once more, which shows what a GPU's order of
      additions does; plain, attention by XLA and no kernel of ours; fp8, products of layers in 8 bits.
      With --kept, what was run is kept there and not run again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import train
from shapes import SHAPES

PLAIN = """
import sys
import ponente.ops.gpu
ponente.ops.gpu.has_triton = lambda: False
from ponente.cli import main
sys.exit(main())
"""
RUNS = {  # program, flags
    "fast": (["-m", "ponente"], []),
    "again": (["-m", "ponente"], []),
    "plain": (["-c", PLAIN], ["--model.attn_backend", "xla"]),
    "fp8": (["-m", "ponente"], ["--trainer.quantization.fp8", "true"]),
}
LAST = 50  # steps whose mean loss is told


@dataclass(frozen=True)
class Run:
    """What a run told."""

    losses: list[float]
    seconds: float  # of the median step

    @property
    def last(self) -> float:
        return sum(self.losses[-LAST:]) / LAST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=["fast", "again", "plain"])
    parser.add_argument("--shape", default="small150m", choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--picture", type=Path)
    train.add_sources(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponente-losses-") as folder:
        site = train.Site(Path(folder), train.text_files(options), Path(options.tokenizers))
        runs = {name: kept(site, name, options) for name in options.runs}
    first = runs[options.runs[0]]
    figures = {}
    for name, run in runs.items():
        figures[name] = {
            "last_loss": run.last,
            "apart": apart(first.losses, run.losses),
            "mean_difference": (sum(run.losses) - sum(first.losses)) / len(run.losses),
            "last_difference": run.last - first.last,
            "step_seconds": run.seconds,
            "speed": first.seconds / run.seconds,
        }
        shown = ", ".join(f"{key.replace('_', ' ')} {value:.5f}" for key, value in figures[name].items())
        print(f"  {name:<8}{shown}", flush=True)
    if options.picture:
        options.picture.write_text(drawing(runs))
    print(json.dumps({name: {key: round(value, 6) for key, value in row.items()} for name, row in figures.items()}))


def kept(site: train.Site, name: str, options: argparse.Namespace) -> Run:
    """The run, made or kept."""
    if options.kept is None:
        return made(site, name, options)
    file = options.kept / f"{options.shape}-{options.rows}x{options.steps}-{name}.json"
    if not file.is_file():
        file.write_text(json.dumps(asdict(made(site, name, options))))
    return Run(**json.loads(file.read_text()))


def made(site: train.Site, name: str, options: argparse.Namespace) -> Run:
    from ponente.store.metrics import read_metrics

    config, (program, flags) = site.folder / f"{name}.yaml", RUNS[name]
    config.write_text(site.config(name, train.Case(options.shape, options.rows)))
    length = ["--trainer.num_train_steps", str(options.steps + 100), "--trainer.checkpointer.keep", "[]"]
    command = [sys.executable, *program, "train", "--config_path", str(config), *length, *flags]
    environment = {**os.environ, "PYTHONPATH": f"{train.SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    log, told = site.folder / f"{name}.log", []
    with log.open("w") as stderr:
        running = subprocess.Popen(command, env=environment, stderr=stderr, stdout=subprocess.DEVNULL)
    while len(told) < options.steps:  # what would follow the last of them is a checkpoint
        if running.poll() is not None:
            sys.exit(f"{name} ended after {len(told)} steps:\n{log.read_text()[-4000:]}")
        time.sleep(1)
        told = [one for one in read_metrics(str(site.folder / "logs" / name)) if "train/loss" in one.metrics]
    running.kill()
    running.wait()
    told = told[: options.steps]
    seconds = sorted(after.time - before.time for before, after in pairwise(told[20:]))
    return Run([one.metrics["train/loss"] for one in told], seconds[len(seconds) // 2])


def apart(one: list[float], other: list[float]) -> float:
    """The mean distance of two runs, step by step."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def drawing(runs: dict[str, Run]) -> str:
    """The losses of all runs as SVG."""
    from ponente.experiment.curves import COLOURS, Curve, picture

    curves = [
        Curve(name=name, points=list(enumerate(run.losses)), colour=colour)
        for (name, run), colour in zip(runs.items(), COLOURS, strict=False)
    ]
    return picture(curves, across="steps", down="train/loss")


if __name__ == "__main__":
    main()
