"""Do fast kernels train like plain ones? Losses of 200 steps on real text, thrice: fast, fast again, plain.

Run:  python benchmarks/h200/losses.py [--steps 200] [--text FILES] [--tokenizers FOLDER] [--picture FILE.svg]
Out:  how far apart the losses are, step by step; two fast runs differ by what a GPU's order of additions does, which is
      the noise. A picture of the curves, and last a line of JSON. Plain: attention by XLA, and none of our kernels.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
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
COLOURS = {"fast": "#1f77b4", "fast again": "#2ca02c", "plain": "#d62728"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small150m", choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture")
    train.add_sources(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponente-losses-") as folder:
        site = train.Site(Path(folder), train.text_files(options), Path(options.tokenizers))
        losses = {name: run(site, name, options) for name in COLOURS}
    figures = {
        "last_loss": sum(losses["fast"][-10:]) / 10,
        "noise": apart(losses["fast"], losses["fast again"]),
        "fast_from_plain": apart(losses["fast"], losses["plain"]),
        "mean_difference": (sum(losses["fast"]) - sum(losses["plain"])) / options.steps,
    }
    for name, value in figures.items():
        print(f"  {name.replace('_', ' '):<18}{value:.5f}")
    if options.picture:
        Path(options.picture).write_text(picture(losses))
    print(json.dumps({name: round(value, 6) for name, value in figures.items()}))


def run(site: train.Site, name: str, options: argparse.Namespace) -> list[float]:
    """The losses of one run."""
    from ponente.store.metrics import read_metrics

    run_id = name.replace(" ", "-")
    config = site.folder / f"{run_id}.yaml"
    config.write_text(site.config(run_id, train.Case(options.shape, options.rows)))
    program = ["-c", PLAIN] if name == "plain" else ["-m", "ponente"]
    flags = ["--trainer.num_train_steps", str(options.steps), "--trainer.checkpointer.keep", "[]"]
    kernel = ["--model.attn_backend", "xla"] if name == "plain" else []
    command = [sys.executable, *program, "train", "--config_path", str(config), *flags, *kernel]
    environment = {**os.environ, "PYTHONPATH": f"{train.SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{name} failed:\n{ran.stderr[-4000:]}")
    found = read_metrics(str(site.folder / "logs" / run_id))
    return [one.metrics["train/loss"] for one in found if "train/loss" in one.metrics]


def apart(one: list[float], other: list[float]) -> float:
    """The mean distance of two runs, step by step."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def picture(losses: dict[str, list[float]], width: int = 720, height: int = 360) -> str:
    """The curves as SVG."""
    lowest, highest = min(map(min, losses.values())), max(map(max, losses.values()))
    lines = []
    for number, (name, run) in enumerate(losses.items()):
        across, down = (width - 60) / (len(run) - 1), (height - 60) / (highest - lowest)
        places = [(40 + step * across, 20 + (highest - loss) * down) for step, loss in enumerate(run)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour = COLOURS[name]
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{points}"/>')
        lines.append(f'<text x="{width - 120}" y="{40 + 18 * number}" fill="{colour}">{name}</text>')
    lines += [
        f'<text x="4" y="24">{highest:.2f}</text>',
        f'<text x="4" y="{height - 40}">{lowest:.2f}</text>',
        f'<text x="{width // 2 - 60}" y="{height - 12}">{len(losses["plain"])} steps, train/loss</text>',
    ]
    body = "\n".join(lines)
    font = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


if __name__ == "__main__":
    main()
