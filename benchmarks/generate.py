"""Greedy generation with a 58M Llama in float32, ours against transformers, on one machine's CPU.

Run:  python benchmarks/generate.py [--repeats 3] [--new 128] [--batches 1 16]
Out:  tokens/s of both with the same weights and prompts of 32 tokens, the best of the repeats, which take turns; wall
      time, and seconds of CPU, which say more on a busy machine. What transformers does with its growing and with its
      static cache is measured, and the faster counts. Last a line of JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from ponente.generate.decode import generate
from ponente.generate.layers import ready
from ponente.generate.sampling import SamplingConfig
from ponente.models.huggingface import export_weights
from ponente.models.llama import LlamaConfig
from ponente.models.parameters import initialize

VOCABULARY, PROMPT = 32000, 32
CONFIG = LlamaConfig(max_seq_len=1024, hidden_dim=512, intermediate_dim=1376, num_layers=8, num_heads=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new", type=int, default=128, help="new tokens a prompt")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    flags = parser.parse_args()
    parameters = CONFIG.parameters(VOCABULARY)
    ours = initialize(parameters, 0)
    theirs = same_model(ours, parameters)
    decoder, figures = ready(ours), {}
    for batch in flags.batches:
        prompts = np.random.default_rng(0).integers(0, VOCABULARY, (batch, PROMPT))
        contestants = {
            "ponente": lambda prompts=prompts: our_ids(decoder, prompts, flags.new),
            "transformers": lambda prompts=prompts: their_ids(theirs, prompts, flags.new, None),
            "transformers_static": lambda prompts=prompts: their_ids(theirs, prompts, flags.new, "static"),
        }
        figures |= contest(batch, flags.new, flags.repeats, contestants)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def same_model(ours: Any, parameters: Any) -> Any:
    """Our model as one of transformers."""
    config = TheirConfig(**CONFIG.to_hf(VOCABULARY))
    model = LlamaForCausalLM(config).eval()
    tensors = export_weights(ours, parameters, CONFIG.hf_weights())
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in tensors})
    return model


def our_ids(decoder: Any, prompts: Any, new: int) -> list[list[int]]:
    return generate(decoder, prompts.tolist(), SamplingConfig(max_new_tokens=new)).ids


def their_ids(model: Any, prompts: Any, new: int, cache: str | None) -> list[list[int]]:
    given = torch.from_numpy(prompts)
    with torch.inference_mode():
        made = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            cache_implementation=cache,
        )
    ids: list[list[int]] = made[:, PROMPT:].tolist()
    return ids


def contest(batch: int, new: int, repeats: int, contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Figures of one batch size, under names that end in it."""
    made = {name: run() for name, run in contestants.items()}  # and all is compiled
    wall = {name: float("inf") for name in contestants}
    cpu = dict(wall)
    for _ in range(repeats):
        for name, run in contestants.items():
            began, used = time.perf_counter(), time.process_time()
            run()
            wall[name] = min(wall[name], time.perf_counter() - began)
            cpu[name] = min(cpu[name], time.process_time() - used)
    tokens = batch * new
    for name in contestants:
        print(
            f"  batch {batch:<3}{name:<20}{tokens / wall[name]:>8.0f} tok/s{1e3 * cpu[name] / new:>8.1f} ms CPU a step"
        )
    same = np.mean(np.array(made["ponente"]) == np.array(made["transformers"]))
    ratios = {}
    for kind, seconds in (("", wall), ("cpu_", cpu)):
        best = min(seconds["transformers"], seconds["transformers_static"])
        ratios[f"{kind}ratio_{batch}"] = best / seconds["ponente"]
    by_wall, by_cpu = ratios[f"ratio_{batch}"], ratios[f"cpu_ratio_{batch}"]
    print(f"  ours / theirs: {by_wall:.2f}, by CPU time {by_cpu:.2f}; {same:.1%} of the ids are equal", flush=True)
    return ratios | {
        f"tokens_per_second_{batch}": tokens / wall["ponente"],
        f"transformers_tokens_per_second_{batch}": tokens / min(wall["transformers"], wall["transformers_static"]),
        f"same_ids_{batch}": float(same),
    }


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
