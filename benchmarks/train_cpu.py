"""Training a small Llama on the CPU: our whole trainer, a lean PyTorch loop, and Levanter, on the same rows.

Run:  .venv/bin/python benchmarks/train_cpu.py [--levanter] [--repeats 3] [--help]      (needs torch for its peer)
In:   real token ids (train_peers/rows.py): 4 layers, 256 wide, MLP 768, 4 heads, 32,000 ids, 16 rows of 256 tokens,
      f32, AdamW, clipping, 2 threads. Ours is `ponente train` with its loader, metrics, tracker and checkpoint.
Out:  tokens a second of each, the median of its runs, and last a line of JSON: vs_torch, vs_levanter (ours over the
      faster of their ways). The first steps of each are not timed: they compile, and fill the memory that is kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from corpus import PREPARED, note
from tokenization_peers.contestants import LEVANTER_PYTHON, levanter_is_installed
from train_peers.rows import prepared_rows, tokenizer_folder

HERE = Path(__file__).resolve().parent
BATCH, LENGTH = 16, 256
TORCH_WAYS = (("compile", "chunked"), ("compile", "full"), ("eager", "chunked"), ("eager", "full"))


def main() -> None:
    flags = parse_flags()
    rows = prepared_rows()
    speeds: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    for number in range(flags.repeats):
        for name, run in contestants(flags, rows).items():
            note(f"round {number + 1} of {flags.repeats}: {name}")
            figures = run()
            note(f"{figures['tokens_per_second']:,.0f} tokens/s")
            speeds.setdefault(name, []).append(figures["tokens_per_second"])
            losses[name] = figures["losses"]
    print(f"16 rows of 256 tokens a step, f32, 2 threads: tokens/s, median of {flags.repeats} (all)")
    for name, found in speeds.items():
        every = " ".join(f"{one:,.0f}" for one in found)
        first, last = losses[name][0], losses[name][-1]
        print(f"  {name:<24}{statistics.median(found):>7,.0f}   ({every})   losses {first:.3f} … {last:.3f}")
    result = {}
    for peer in ("torch", "levanter"):
        theirs = [statistics.median(found) for name, found in speeds.items() if name.startswith(peer)]
        result[f"vs_{peer}"] = round(statistics.median(speeds["ponente"]) / max(theirs), 3) if theirs else None
    print(json.dumps(result))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--levanter", action="store_true", help="also run Levanter, installed in its own environment")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="that are timed (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=10, help="steps before them (default: %(default)s)")
    parser.add_argument("--ours_only", action="store_true")
    return parser.parse_args()


def contestants(flags: argparse.Namespace, rows: Path) -> dict:
    length = ["--steps", str(flags.steps), "--warm_up", str(flags.warm_up)]
    found = {"ponente": lambda: ours(flags, rows)}
    if flags.ours_only:
        return found
    for mode, loss in TORCH_WAYS:
        command = [sys.executable, str(HERE / "train_peers" / "torch_llama.py"), str(rows), *length]
        found[f"torch, {mode}, {loss}"] = lambda extra=("--mode", mode, "--loss", loss), command=command: last_json(
            [*command, *extra]
        )
    if flags.levanter:
        if not levanter_is_installed():
            sys.exit("train_cpu.py: Levanter could not be installed; run without --levanter.")
        command = [str(LEVANTER_PYTHON), str(HERE / "train_peers" / "levanter_train.py"), str(rows)]
        for name, extra in (("levanter", ()), ("levanter, checkpointing", ("--gradient_checkpointing",))):
            found[name] = lambda extra=extra: last_json([*command, str(tokenizer_folder()), *length, *extra])
    return found


def ours(flags: argparse.Namespace, rows: Path) -> dict:
    """One run of the whole trainer, from a cache of the rows."""
    from ponente.store.metrics import read_metrics

    steps = flags.warm_up + flags.steps
    with tempfile.TemporaryDirectory(prefix="ponente-train-") as work:
        command = [
            *(sys.executable, "-m", "ponente", "train", "--config_path", str(config_of(rows))),
            *("--trainer.num_train_steps", str(steps), "--trainer.id", "run", "--trainer.log_dir", f"{work}/logs"),
            *("--trainer.checkpointer.base_path", f"{work}/checkpoints"),
        ]
        subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stderr=subprocess.DEVNULL)
        told = [row for row in read_metrics(f"{work}/logs/run") if "train/loss" in row.metrics]
    timed = told[flags.warm_up :]
    seconds = timed[-1].time - told[flags.warm_up - 1].time
    return {
        "tokens_per_second": len(timed) * BATCH * LENGTH / seconds,
        "losses": [row.metrics["train/loss"] for row in told],
    }


def config_of(rows: Path) -> Path:
    """The config, with the rows as a Parquet file beside it."""
    folder = PREPARED / f"{rows.stem}-ponente"
    if not folder.is_dir():
        import pyarrow as pa
        import pyarrow.parquet as pq

        private = folder.with_name(f".{os.getpid()}-{folder.name}")
        private.mkdir(parents=True)
        ids = np.load(rows).astype(np.int32)
        pq.write_table(pa.table({"input_ids": list(ids)}), private / "rows.parquet")
        private.rename(folder)
    config = folder / "config.yaml"
    config.write_text(f"""
data:
  tokenizer: passthrough
  vocab_size: 32000
  cache_dir: {folder / "cache"}
  shuffle: false
  block_cross_document_attention: false
  components: {{rows: {{source: {{train_urls: ["{folder}/rows.parquet"]}}, format: {{type: prebuilt}}}}}}
model: {{type: llama, max_seq_len: {LENGTH}, hidden_dim: 256, intermediate_dim: 768, num_layers: 4, num_heads: 4,
  gradient_checkpointing: false, scan_layers: false}}
optimizer: {{learning_rate: 6e-4, lr_schedule: constant, warmup: 0, weight_decay: 0.1}}
trainer: {{train_batch_size: {BATCH}}}
""")
    return config


def last_json(command: list[str]) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"train_cpu.py: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
