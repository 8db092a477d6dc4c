"""The trainer as users run it, on one H200: the median of steps 20 to 60, beside PyTorch in the same call.

Run:  python benchmarks/h200/train.py [CASE …] [--text FILES] [--tokenizers FOLDER] [--help]   (needs a GPU)
In:   text as JSON lines, by default that of ../corpus.py; tokenizers llama3.1 and gpt2, by default those of ../shared.
Out:  a table, and last a line of JSON, {case: {ours_mfu, torch_mfu, …}}. Each run is `ponente train` in a process of
      its own, ended after the last step that counts: token cache, loader, schedule, clipping, AdamW in float32,
      metrics, and a checkpoint that is begun at step 10 and written while steps go on. The peers have none of these.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path

from shapes import FIRST, LAST, SHAPES, Shape

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
sys.path.insert(0, str(SOURCE))  # on a lent machine nothing is installed

SAVED = 10  # the step whose state is saved


@dataclass(frozen=True)
class Case:
    """A shape, and how it is run."""

    shape: str
    rows: int
    flags: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    blocks_documents: bool = True
    last: int = LAST  # of the steps that are timed


_SCANNED = ("--model.scan_layers", "true", "--model.gradient_checkpointing", "dots_and_attention")
CASES = {
    "dclm1b": Case("dclm1b", 16, peers=("lean", "transformers")),
    "plain": Case("dclm1b", 16, blocks_documents=False),
    "batch32": Case("dclm1b", 32, ("--model.gradient_checkpointing", "dots_and_attention")),
    "scanned": Case("dclm1b", 16, _SCANNED),
    "deterministic": Case("dclm1b", 16, ("--trainer.deterministic", "true")),
    "fp8": Case("dclm1b", 16, ("--trainer.quantization.fp8", "true")),
    "offload": Case("dclm1b", 16, ("--trainer.offload_optimizer", "true"), last=FIRST + 6),
    "offload_kept": Case("dclm1b", 32, (*_SCANNED[:3], "offload"), last=FIRST + 6),
    "auto": Case("dclm1b", 48, ("--trainer.per_device_parallelism", "auto"), last=FIRST + 6),
    "long8k": Case("long8k", 4, peers=("lean",)),
    "small150m": Case("small150m", 64, peers=("lean",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default all: {', '.join(CASES)}")
    add_sources(parser)
    parser.add_argument(
        "--peers", nargs="*", metavar="PEER", help="lean, transformers, or none; by default each case's"
    )
    parser.add_argument("--start", action="store_true", help="also the start again, with the compilation cache")
    options = parser.parse_args()
    chosen = {name: CASES[name] for name in options.cases or CASES}
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="ponente-h200-") as folder:
        site = Site(Path(folder), text_files(options), Path(options.tokenizers))
        for name, case in chosen.items():
            figures[name] = site.run(name, case)
            if options.start:
                again = site.run(name, case, is_start=True)
                figures[name]["first_step_seconds_again"] = again["first_step_seconds"]
            for peer in case.peers if options.peers is None else options.peers:
                figures[name] |= peer_figures(peer, case)
            tell(name, figures[name])
    print(json.dumps({case: {key: round(value, 4) for key, value in row.items()} for case, row in figures.items()}))


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The flags that say what is trained on."""
    cached = Path.home() / ".cache" / "ponente-data"
    parser.add_argument("--text", default=str(cached / "bench" / "text-*" / "gz" / "text-000[01]*.jsonl.gz"))
    parser.add_argument("--tokenizers", default=str(cached / "tokenizers"))


def text_files(options: argparse.Namespace) -> list[str]:
    """The files of text; ends the program where there are none."""
    files = sorted(glob(options.text))
    if not files:
        sys.exit(f"found no file {options.text}; needed text: run benchmarks/corpus.py, or give --text FILE.jsonl.gz")
    return files


@dataclass(frozen=True)
class Site:
    """A folder with token caches, in which runs are made."""

    folder: Path
    files: list[str]
    tokenizers: Path

    def run(self, name: str, case: Case, *, is_start: bool = False) -> dict[str, float]:
        """The figures of one run of the trainer, which is ended after its last step that is timed.

        Args:
            is_start: of the start alone, with what an earlier run compiled.
        """
        steps = 2 if is_start else case.last + 1
        config = self.folder / f"{name}.yaml"
        config.write_text(self.config(name, case))
        environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        shown = ["--config_path", str(config), *case.flags]
        build = [sys.executable, "-m", "ponente", "cache-dataset", "--config_path", str(config)]
        subprocess.run(build, check=True, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for made in ("logs", "checkpoints", *(() if is_start else ("compiled",))):
            shutil.rmtree(self.folder / made, ignore_errors=True)
        began, log = time.time(), self.folder / f"{name}.log"
        with log.open("w") as stderr:
            command = [sys.executable, "-m", "ponente", "train", *shown]
            running = subprocess.Popen(command, env=environment, stderr=stderr, stdout=subprocess.DEVNULL)
        while len(times := self._times(name)) < steps:
            if running.poll() is not None:
                sys.exit(f"{name} ended after {len(times)} steps:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        running.kill()
        running.wait()
        told = [line.strip() for line in log.read_text().splitlines() if re.search(r"attention:|compiled|stood", line)]
        print("\n".join(f"    {line}" for line in told), flush=True)
        figures = {"first_step_seconds": times[0] - began}
        if not is_start:
            figures |= self._speed(case, times, config) | {"stood_seconds": float(_stood(log.read_text()))}
        return figures

    def _times(self, name: str) -> list[float]:
        """When each step ended."""
        from ponente.store.metrics import read_metrics

        folder = self.folder / "logs" / name
        found = read_metrics(str(folder)) if folder.is_dir() else []
        return [one.time for one in found if "train/loss" in one.metrics]

    def _speed(self, case: Case, times: list[float], config: Path) -> dict[str, float]:
        shape = SHAPES[case.shape]
        tokens = case.rows * shape.length

        def speed(first: int, last: int) -> float:
            """By the median step: one that waits for a second program to be compiled is none of steady state."""
            seconds = sorted(after - before for before, after in pairwise(times[first : last + 1]))
            return tokens / seconds[len(seconds) // 2]

        steady = speed(FIRST, case.last)
        figures = {
            "ours_tokens_per_second": steady,
            "ours_mfu": shape.mfu(steady),
            "before_saving_mfu": shape.mfu(speed(3, SAVED - 1)),
            "while_saving_mfu": shape.mfu(speed(SAVED + 1, FIRST)),
            "longest_step_seconds": max(after - before for before, after in pairwise(times[FIRST : case.last + 1])),
        }
        if case.blocks_documents:
            figures["ours_mfu_run"] = shape.mfu(steady, pairs_per_token(config))
        return figures

    def config(self, name: str, case: Case) -> str:
        """The YAML of a run."""
        shape: Shape = SHAPES[case.shape]
        settings = {
            "data": {
                "tokenizer": str(self.tokenizers / shape.tokenizer),
                "cache_dir": str(self.folder / f"cache-{shape.tokenizer}"),
                "block_cross_document_attention": case.blocks_documents,
                "components": {"text": {"source": {"train_urls": self.files}}},
            },
            "model": {
                "type": "llama",
                "max_seq_len": shape.length,
                "hidden_dim": shape.width,
                "intermediate_dim": shape.mlp,
                "num_layers": shape.layers,
                "num_heads": shape.heads,
                "num_kv_heads": shape.heads,
                "scan_layers": False,
                "gradient_checkpointing": False,
                "rope": {"type": "default", "theta": 500_000},
            },
            "optimizer": {"learning_rate": 6e-4, "warmup": 10, "weight_decay": 0.1, "max_grad_norm": 1.0},
            "trainer": {
                "id": name,
                "mp": "p=f32,c=bfloat16",
                "train_batch_size": case.rows,
                "num_train_steps": 1000,
                "log_dir": str(self.folder / "logs"),
                "jax_compilation_cache_dir": str(self.folder / "compiled"),
                "checkpointer": {
                    "base_path": str(self.folder / "checkpoints"),
                    "keep": [{"every": SAVED, "until": SAVED}],
                },
            },
        }  # fmt: skip
        return json.dumps(settings)  # which is YAML


def pairs_per_token(config: Path) -> float:
    """Pairs of tokens that see each other, for each token, with documents apart."""
    import numpy as np

    from ponente.train.data.caches import open_data
    from ponente.train.data.settings import load_settings

    settings = load_settings(str(config), [])
    stream = settings.training_data(open_data(settings.data)).stream
    ids = np.concatenate([stream.batch(step).segment_ids_BS for step in range(FIRST, LAST, 4)])
    return sum(int((np.bincount(row) ** 2).sum()) / 2 for row in ids) / ids.size


def _stood(log: str) -> str:
    found = re.search(rf"step {SAVED}: training stood for ([\d.]+) s", log)
    assert found is not None, "no checkpoint was saved"
    return found[1]


def peer_figures(peer: str, case: Case) -> dict[str, float]:
    """What PyTorch does with the same shape and batch."""
    command = [sys.executable, str(HERE / "torch_peer.py"), peer, case.shape, str(case.rows)]
    ran = subprocess.run(command, capture_output=True, text=True)
    key = "torch" if peer == "lean" else peer
    if ran.returncode:
        print(f"    {peer} failed: {ran.stderr.strip()[-300:]}", flush=True)
        return {}
    speed = json.loads(ran.stdout.splitlines()[-1])["tokens_per_second"]
    return {f"{key}_tokens_per_second": speed, f"{key}_mfu": SHAPES[case.shape].mfu(speed)}


def tell(name: str, figures: dict[str, float]) -> None:
    shown = [f"ours {figures['ours_tokens_per_second']:,.0f} tok/s, {figures['ours_mfu']:.1%} MFU"]
    if "ours_mfu_run" in figures:
        shown.append(f"{figures['ours_mfu_run']:.1%} with the attention that is run")
    for peer in ("torch", "transformers"):
        if figures.get(f"{peer}_mfu"):
            shown.append(
                f"{peer} {figures[f'{peer}_mfu']:.1%}, ours / it {figures['ours_mfu'] / figures[f'{peer}_mfu']:.3f}"
            )
    shown.append(f"first step after {figures['first_step_seconds']:.0f} s")
    if "first_step_seconds_again" in figures:
        shown.append(f"again {figures['first_step_seconds_again']:.0f} s")
    shown.append(f"stood {figures['stood_seconds']:.2f} s for a checkpoint")
    shown.append(f"{figures['before_saving_mfu']:.1%} before it, {figures['while_saving_mfu']:.1%} just after it")
    print(f"  {name:<14}" + "; ".join(shown), flush=True)


if __name__ == "__main__":
    main()
