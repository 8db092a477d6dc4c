"""Memory of large models on several devices, without them: 7 and 70 billion parameters, compiled for 8 made-up ones.

Run:  python benchmarks/memory.py [MODEL …] [--help]
In:   the sizes of Llama 2 7B and 70B; no data, no weights: shapes alone are compiled.
Out:  for each model, what the compiled step says that a device holds of the state, against an eighth of all of it (1.05
      at most is wanted); then the estimates of `ponente train --estimate` for v5p-128, 8 H100 and 1 H200; and last a
      line of JSON, {model: {state_ratio, compile_seconds, …}}.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before JAX is imported
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import jax

from ponente.train.beginning import abstract_state_of
from ponente.train.compiling import lower_step
from ponente.train.config import load_train_config
from ponente.train.estimate import estimate_lines
from ponente.train.fitting import GIB, Need
from ponente.train.setup import set_up_model

MODELS = {
    "7b": "hidden_dim: 4096, intermediate_dim: 11008, num_layers: 32, num_heads: 32, num_kv_heads: 32",
    "70b": "hidden_dim: 8192, intermediate_dim: 28672, num_layers: 80, num_heads: 64, num_kv_heads: 8",
}
HARDWARE = ("v5p-128", "8xh100", "1xh200")
CONFIG = """
data: {{tokenizer: passthrough, vocab_size: 32000, components: {{text: {{source: {{train_urls: [none.jsonl]}}}}}}}}
model: {{type: llama, max_seq_len: 4096, {sizes}}}
trainer: {{num_train_steps: 250000, mp: "p=f32,c=bfloat16", train_batch_size: {rows},
  per_device_parallelism: {at_once}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"by default all: {', '.join(MODELS)}")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(json.dumps({name: measured(name) for name in options.models or MODELS}))


def measured(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(CONFIG.format(sizes=MODELS[name], rows=8, at_once=1))
        config = load_train_config(str(file), ["--trainer.mesh.axes", "{data: 8}"]).config
        model = set_up_model(config)
        state = abstract_state_of(model, config.optimizer.build(model.parameters, 1))
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        began = time.perf_counter()
        need = Need.of(lower_step(config).compile())
        seconds = time.perf_counter() - began
        ratio = need.state / (whole / 8)
        held = f"{need.state / GIB:.2f} on each of 8 devices, {ratio:.4f} of an eighth"
        print(f"{name}: {whole / GIB:.1f} GiB of state, {held}")
        file.write_text(CONFIG.format(sizes=MODELS[name], rows=1024, at_once="auto"))
        for hardware in HARDWARE:
            print(f"\n{name} on {hardware}, 1,024 rows of 4,096 tokens a step:")
            for line in estimate_lines(load_train_config(str(file), []).config, hardware):
                print(f"  {line}")
        print(flush=True)
    return {"state_ratio": round(ratio, 4), "compile_seconds": round(seconds, 1), "state_gib": round(whole / GIB, 2)}


if __name__ == "__main__":
    main()
