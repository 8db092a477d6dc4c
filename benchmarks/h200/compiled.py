"""Steps and decoding with connections over depth, compiled for an H200 where there is none: memory, and kernels.

Run:  python benchmarks/h200/compiled.py [--variants baseline default plain] [--layers 12 24 48] [--rows 16] [--help]
In:   shapes alone. Needs JAX's plugin for CUDA, of JAX's version (`pip install jax-cuda13-plugin nvidia-cuda-nvcc`).
Out:  for each number of layers and variant, the memory of a step by the compiler's account and against the first
      variant, and how many kernels a step and a decoded token take; last a line of JSON. Attention of steps is a
      stand-in that keeps what cuDNN's keeps, which cannot be compiled without a GPU: two steps were within 0.2% of
      those compiled with one.
Cost: on two cores, a minute for each step of 24 layers, and half of one for decoding.
"""

import argparse
import contextlib
import importlib
import json
import logging
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # there is nothing to try kernels on
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import jax
import jax.numpy as jnp
import numpy as np
from connections import VARIANTS, VOCABULARY, model_of
from shapes import Shape
from variants import batch_of, first_state, settings_of

TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150754820096 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
OPS = ("attention", "cudnn", "embedding", "gated", "linear", "loss", "mixing", "norm", "prefetch", "weighing")
FREE = "parameter|get-tuple-element|tuple|bitcast|constant"  # operations that are no kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=["baseline", "default", "plain"])
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--rows", type=int, default=16, help="of 2,048 tokens; 0: no steps")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16], help="tokens that are decoded at once")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    place = pretend()
    figures: dict[str, dict[str, float]] = {}
    for layers in options.layers:
        shape = Shape(layers=layers, mlp=5632, vocabulary=VOCABULARY)
        first: dict[str, float] = {}
        for name in options.variants:
            found = step(name, shape, options.rows, place) if options.rows else {}
            found |= {f"kernels_{batch}": float(decoded(name, shape, batch, place)) for batch in options.batches}
            first = first or found
            told = "; ".join(
                f"{key.replace('_', ' ')} {value:.2f} ({value / first[key]:.3f})" for key, value in found.items()
            )
            print(f"  {layers} layers  {name:<10}{told}", flush=True)
            figures[f"{name}_{layers}"] = found
    print(json.dumps({name: {key: round(value, 3) for key, value in row.items()} for name, row in figures.items()}))


def pretend() -> Any:
    """Lets all that asks see an H200; returns where arrays of programs for it are said to be."""
    from jax._src import xla_bridge
    from jax.experimental import topologies

    known = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name in ("gpu", "cuda") else known(name)
    with contextlib.suppress(ImportError):  # before JAX 0.11 nobody asks
        from jax._src.pallas.triton import gpu_info

        gpu_info.get_gpu_info = lambda: gpu_info.GpuInfo(gpu_version=None, arch_name="9.0", compute_capability=90)
    for name in ("platform", "gpu", *OPS):
        module = importlib.import_module(f"ponente.ops.{name}")
        for asked, answer in (("platform", "gpu"), ("capability", 9.0), ("has_triton", True), ("is_right", True)):
            if hasattr(module, asked):
                setattr(module, asked, lambda answer=answer: answer)
    importlib.import_module("ponente.ops.cudnn").attend = attend
    (device,) = topologies.get_topology_desc(platform="cuda", target_config=TARGET, topology="1x1x1").devices
    return jax.sharding.SingleDeviceSharding(device)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(q: Any, k: Any, v: Any, tables: Any, scale: float) -> Any:
    """Stands in for cuDNN's: it takes, keeps and makes arrays of the same sizes."""
    return _forward(q, k, v, tables, scale)[0]


def _forward(q: Any, k: Any, v: Any, tables: Any, scale: float) -> Any:
    made = q * k + v, jnp.sum((q * k).astype(jnp.float32), axis=-1)
    mixed, statistics = jax.lax.optimization_barrier(made)
    return mixed, (q, k, v, mixed, statistics)


def _backward(scale: float, kept: Any, by: Any) -> Any:
    q, k, v, mixed, statistics, by = jax.lax.optimization_barrier((*kept, by))
    made = by * k * mixed * statistics[..., None].astype(by.dtype), by * q * mixed, by + v
    return *jax.lax.optimization_barrier(made), None


attend.defvjp(_forward, _backward)


def placed(tree: Any, place: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place), tree)


def step(name: str, shape: Shape, rows: int, place: Any) -> dict[str, float]:
    """Memory and kernels of a step, those outside its loops: on a GPU that it tries products on it chooses others."""
    from ponente.train.fitting import GIB, Need
    from ponente.train.step import TrainStep

    model = model_of(name, shape)
    settings = settings_of(model, shape)
    state = jax.eval_shape(partial(first_state, model, settings.optimizer, shape))
    program = TrainStep(settings).lower(placed(state, place), placed(batch_of(shape, rows), place)).compile()
    (lines,) = re.findall(r"^ENTRY .*?\n(.*?)^}", program.as_text(), re.MULTILINE | re.DOTALL)
    return {"step_gib": Need.of(program).total / GIB, "step_kernels": float(kernels_in(lines))}


def decoded(name: str, shape: Shape, batch: int, place: Any) -> int:
    """Kernels of a token, for so many rows."""
    from ponente.generate.decode import Rule, Texts, decode
    from ponente.generate.layers import apart, ready
    from ponente.generate.sampling import SamplingConfig
    from ponente.models.lm import KeyValues
    from ponente.models.parameters import is_parameter

    model = model_of(name, shape)
    like = lambda one: jax.ShapeDtypeStruct(one.shape, jnp.bfloat16)  # noqa: E731
    weights = jax.tree.map(like, model.parameters(shape.vocabulary), is_leaf=is_parameter)
    cache = lambda: apart(KeyValues.empty(model, batch, 640, np.dtype(jnp.bfloat16)))  # noqa: E731
    rule = Rule.of(SamplingConfig(max_new_tokens=128), range(batch), shape.vocabulary)
    given = (jax.eval_shape(ready, weights), jax.eval_shape(cache), Texts.none(batch, 128), rule)
    limit = jax.ShapeDtypeStruct((), jnp.int32)
    text = decode.lower(*placed((*given, limit), place)).compile().as_text()
    body = re.search(r"body=%?([\w.\-]+)", text)
    assert body is not None
    (lines,) = re.findall(rf"^%?{re.escape(body[1])} .*?\n(.*?)^}}", text, re.MULTILINE | re.DOTALL)
    return kernels_in(lines)


def kernels_in(lines: str) -> int:
    """Of a compiled computation."""
    operations = re.findall(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", lines, re.MULTILINE)
    return sum(not re.fullmatch(FREE, operation) for operation in operations)


if __name__ == "__main__":
    main()
