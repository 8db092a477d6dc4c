"""Does each part of a MUDDFormer help a small model on real text? Four variants, trained alike, with several seeds.

Run:  python benchmarks/h200/muddformer.py --out RUNS.jsonl [--text FOLDER] [--tokenizer FOLDER] [--seeds 0 1 2]
      [--variants baseline …] [--runs static:1 …] [--at-once 4] [--begin-within SECONDS] [--epochs 1] [--help]
In:   train.jsonl.xz and validation.jsonl.xz of muddformer_text.py; a tokenizer.
Out:  a line of RUNS.jsonl for each run, added when it has ended: its losses, parameters, device and times.
Cost: needs a GPU; at defaults, twelve runs of 30 million tokens: about a quarter of an hour of one H200.
Then: muddformer_report.py RUNS.jsonl …   Expected: losses fall from baseline to static, dynamic and multiway.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
sys.path.insert(0, str(SOURCE))  # on a lent machine nothing is installed

CACHED = Path.home() / ".cache" / "ponente-data"
LADDER: dict[str, dict[str, object]] = {  # in the order in which gains should grow
    "baseline": {"dense_conn": False},
    "static": {"dynamic_dense_type": "l", "mudd_dynamic": False},
    "dynamic": {"dynamic_dense_type": "l"},
    "multiway": {"dynamic_dense_type": "qkvm"},
}
VARIANTS = LADDER | {"normed": {"dynamic_dense_type": "qkvm", "mudd_prenorm": True, "mudd_postnorm": True}}
VOCABULARY = 50_432


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all runs have in common; each is a flag."""

    layers: int = 12
    width: int = 512
    heads: int = 8
    mlp: int = 1408
    length: int = 1024
    rows: int = 32
    learning_rate: float = 1e-3
    initializer_range: float = 0.006
    epochs: int = 1
    steps: int = 0  # instead of epochs; 0: none
    steps_per_eval: int = 100


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has ended: a line of the file."""

    variant: str
    seed: int
    settings: dict[str, float]
    parameters: int
    device: str
    versions: dict[str, str]
    command: str
    began: float  # seconds since 1970
    ended: float
    losses: dict[str, list[tuple[float, float]]]  # by metric: tokens that were seen, and the loss

    @property
    def name(self) -> str:
        return f"{self.variant}:{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where text comes from, and where caches and runs are made."""

    text: Path
    tokenizer: Path
    scratch: Path
    settings: Settings
    memory_share: float  # of the GPU, for each run
    command: str

    def tokenize(self) -> None:
        """Makes the token caches, unless they are there."""
        began = time.monotonic()
        self._ponente("cache-dataset", next(iter(VARIANTS)), 0)
        print(f"  token caches after {time.monotonic() - began:.0f} s", flush=True)

    def run(self, variant: str, seed: int) -> Run:
        """Trains from the first step to the last; raises `RuntimeError` with the end of the log where that fails."""
        from ponente.experiment.curves import losses_of
        from ponente.train.run_record import read_run_record

        for made in ("logs", "checkpoints"):
            shutil.rmtree(self.scratch / made / _id(variant, seed), ignore_errors=True)
        began = time.time()
        self._ponente("train", variant, seed)
        ended = time.time()
        folder = str(self.scratch / "logs" / _id(variant, seed))
        shutil.rmtree(self.scratch / "checkpoints" / _id(variant, seed))  # of a gigabyte, and not needed
        record = read_run_record(folder)
        assert record is not None
        life = record.lives[-1]
        return Run(
            variant=variant,
            seed=seed,
            settings=asdict(self.settings),
            parameters=life.extra["parameters"],
            device=str(life.devices),
            versions=life.versions,
            command=self.command,
            began=began,
            ended=ended,
            losses=losses_of(folder),
        )

    def _ponente(self, verb: str, variant: str, seed: int) -> None:
        """Runs a command of ours in a process of its own."""
        config, log = (self.scratch / f"{verb}-{_id(variant, seed)}.{suffix}" for suffix in ("yaml", "log"))
        config.write_text(json.dumps(self.config(variant, seed)))  # which is YAML
        environment = {
            **os.environ,
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{self.memory_share:.3f}",
        }
        command = [sys.executable, "-m", "ponente", verb, "--config_path", str(config)]
        with log.open("w") as stream:
            ended = subprocess.run(command, env=environment, stdout=stream, stderr=stream)
        if ended.returncode:
            raise RuntimeError(f"{verb} of {variant}:{seed} ended with {ended.returncode}:\n{log.read_text()[-3000:]}")

    def config(self, variant: str, seed: int) -> dict[str, Any]:
        """The training config of a run: but for the variant's own keys of the model, the same for each seed."""
        return {
            "data": self._data(),
            "model": self._model(variant),
            "optimizer": self._optimizer(),
            "trainer": self._trainer(variant, seed),
        }

    def _data(self) -> dict[str, Any]:
        source = {f"{split}_urls": [str(self.text / f"{split}.jsonl.xz")] for split in ("train", "validation")}
        return {
            "tokenizer": str(self.tokenizer),
            "vocab_size": VOCABULARY,
            "cache_dir": str(self.scratch / "cache"),
            "shuffle": True,
            "block_cross_document_attention": False,
            "components": {"text": {"source": source, "format": {"type": "text"}}},
        }

    def _model(self, variant: str) -> dict[str, Any]:
        size = self.settings
        return {
            "type": "mudd",
            "max_seq_len": size.length,
            "hidden_dim": size.width,
            "intermediate_dim": size.mlp,
            "num_layers": size.layers,
            "num_heads": size.heads,
            "num_kv_heads": size.heads,
            "initializer_range": size.initializer_range,
            "gradient_checkpointing": False,
            **VARIANTS[variant],
        }

    def _optimizer(self) -> dict[str, Any]:
        return {
            "type": "adam",
            "learning_rate": self.settings.learning_rate,
            "lr_schedule": "cosine",
            "warmup": 0.05,
            "min_lr_ratio": 0.1,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
        }

    def _trainer(self, variant: str, seed: int) -> dict[str, Any]:
        size = self.settings
        return {
            "id": _id(variant, seed),
            "seed": seed,
            "mp": "p=f32,c=bfloat16",
            "train_batch_size": size.rows,
            **({"num_train_steps": size.steps} if size.steps else {"num_train_epochs": size.epochs}),
            "steps_per_eval": size.steps_per_eval,
            "log_dir": str(self.scratch / "logs"),
            "tracker": {"type": "local"},
            "watch": {"interval": 0},
            "jax_compilation_cache_dir": str(self.scratch / "compiled" / variant),
            "checkpointer": {"base_path": str(self.scratch / "checkpoints"), "keep": []},
        }


def main() -> None:
    options = read_flags()
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    site = Site(
        text=options.text.resolve(),
        tokenizer=options.tokenizer.resolve(),
        scratch=options.scratch.resolve(),
        settings=settings,
        memory_share=options.memory / options.at_once,
        command=shlex.join(["python", *sys.argv]),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    made = read_runs([options.out]) if options.out.is_file() else []
    check_settings(made, settings, options.out)
    done = {run.name for run in made}
    asked = options.runs or [(variant, seed) for seed in options.seeds for variant in options.variants]
    left = [(variant, seed) for variant, seed in asked if f"{variant}:{seed}" not in done]
    site.scratch.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    site.tokenize()

    def in_time(variant: str, seed: int) -> Run | None:
        return site.run(variant, seed) if time.monotonic() - began < options.begin_within else None

    missing, failures = [], 0
    with ThreadPoolExecutor(options.at_once) as pool:
        names = {pool.submit(in_time, variant, seed): f"{variant}:{seed}" for variant, seed in left}
        for future in as_completed(names):
            if (error := future.exception()) is not None:  # the others go on
                failures += 1
                print(f"  {type(error).__name__}: {error}", flush=True)
            elif (run := future.result()) is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(asdict(run)) + "\n")
                last = run.losses["eval/loss"][-1][1]
                told = f"validation loss {last:.4f}, {run.parameters:,} parameters, {run.ended - run.began:.0f} s"
                print(f"  {run.name:<12}{told}; {time.monotonic() - began:.0f} s in all", flush=True)
                continue
            missing.append(names[future])
    if missing:
        print(f"  not made: --runs {' '.join(missing)}", flush=True)
    if failures:
        sys.exit(
            f"found {failures} of {len(left)} runs failed; needed all. See above; the same command makes the rest."
        )


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="runs that are in this file are not made again")
    parser.add_argument("--text", type=Path, default=CACHED / "mudd")
    parser.add_argument("--tokenizer", type=Path, default=CACHED / "tokenizers" / "gpt-neox-20b")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/ponente-muddformer"), help="caches are kept there")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(LADDER))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", type=_run_name, metavar="VARIANT:SEED", help="instead of the two above")
    parser.add_argument("--at-once", type=int, default=4, help="runs that share the GPU")
    parser.add_argument("--memory", type=float, default=0.92, help="the part of the GPU's memory that they share")
    parser.add_argument("--begin-within", type=float, default=float("inf"), help="seconds; later none is begun")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return parser.parse_args()


def read_runs(files: list[Path]) -> list[Run]:
    """The runs of some files, in the order of variants and seeds; settings younger than a run are at their defaults."""
    read = [Run(**json.loads(line)) for file in files for line in file.read_text().splitlines()]
    runs = [replace(run, settings=asdict(Settings()) | run.settings) for run in read]
    return sorted(runs, key=lambda run: (list(VARIANTS).index(run.variant), run.seed))


def check_settings(made: list[Run], settings: Settings, file: Path) -> None:
    """Ends the program where a run of the file has other settings than those asked for: it would not be comparable."""
    asked = asdict(settings)
    for run in made:
        differing = [name for name in {**asked, **run.settings} if run.settings.get(name) != asked.get(name)]
        if differing:
            found, needed = (_told(differing, values) for values in (run.settings, asked))
            sys.exit(
                f"found {run.name} in {file} with {found}; needed {needed}, as asked for. "
                "Give another file as --out, or ask for the settings of this one."
            )


def _told(names: list[str], values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {values.get(name, 'absent')}" for name in names)


def _run_name(text: str) -> tuple[str, int]:
    variant, _, seed = text.partition(":")
    if variant not in VARIANTS or not seed.isdigit():
        raise argparse.ArgumentTypeError(f"found {text}; needed VARIANT:SEED with one of {', '.join(VARIANTS)}")
    return variant, int(seed)


def _id(variant: str, seed: int) -> str:
    return f"{variant}-{seed}"


if __name__ == "__main__":
    main()
