"""The devices of a run, and settings of JAX that must be made before they are touched."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from ponente.config.errors import RefusedError
from ponente.ops.mesh import Layout
from ponente.train.memory import keep_memory
from ponente.train.offload import check_offload
from ponente.train.quantization import check_fp8_device
from ponente.train.trainer import TrainerConfig

_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
# XLA tries each product in 8 bits with kernels of its own making, which takes it minutes; cuBLASLt's are the faster.
_PRODUCTS_BY_LIBRARY = "--xla_gpu_enable_triton_gemm=false"
_MEMORY_SHARES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # two names of one thing
_MEMORY_SHARE = "0.93"  # of a GPU's memory: a run has it for itself
_XLA_CACHES = "xla_gpu_per_fusion_autotune_cache_dir"  # JAX's default
_DEFAULTS: Mapping[str, Any] = {"jax_threefry_partitionable": True}

logger = logging.getLogger(__name__)


def prepare_devices(trainer: TrainerConfig) -> None:
    """Applies the trainer's settings of JAX, and refuses a machine without an accelerator where one is required."""
    prepare_jax(trainer)
    check_devices(trainer)


def prepare_jax(trainer: TrainerConfig) -> None:
    """Applies the trainer's settings of JAX; no device is touched."""
    keep_memory()
    if not any(name in os.environ for name in _MEMORY_SHARES):
        os.environ[_MEMORY_SHARES[0]] = _MEMORY_SHARE
    for flag, is_wanted in ((_DETERMINISTIC, trainer.deterministic), (_PRODUCTS_BY_LIBRARY, trainer.has_fp8)):
        if is_wanted and flag not in (flags := os.environ.get("XLA_FLAGS", "")):
            os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
    # What other runs found out by timing must not choose the kernels of a deterministic one.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none" if trainer.deterministic else _XLA_CACHES)
    if trainer.jax_compilation_cache_dir is not None:
        jax.config.update("jax_compilation_cache_dir", trainer.jax_compilation_cache_dir)
        compilation_cache.reset_cache()  # or the folder of an earlier run in this process would be used
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    for key, value in {**_DEFAULTS, **trainer.jax_config}.items():
        jax.config.update(key, value)


def check_devices(trainer: TrainerConfig) -> None:
    """Refuses a machine without an accelerator where one is required."""
    if trainer.require_accelerator and jax.default_backend() == "cpu":
        raise RefusedError(
            "found no accelerator (JAX sees CPUs alone), but trainer.require_accelerator: true; needed a GPU or TPU. "
            "Install JAX for it (pip install 'ponente[gpu]'), or remove the key."
        )


def check_training_devices(trainer: TrainerConfig) -> None:
    """The same, and what training alone asks for."""
    check_devices(trainer)
    if trainer.has_fp8:
        check_fp8_device()
    if trainer.offload_optimizer:
        check_offload()


def describe_devices(layout: Layout | None) -> str:
    """The devices in words: `8 NVIDIA H200 (data 4, model 2)`, or `1 of 8 cpu`."""
    there = jax.devices()
    used = 1 if layout is None else layout.mesh.size
    count = str(used) if used == len(there) else f"{used} of {len(there)}"
    axes = {} if layout is None else layout.mesh.shape
    sizes = ", ".join(f"{name} {size}" for name, size in axes.items() if size > 1)
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{count} {there[0].device_kind}{processes}" + (f" ({sizes})" if sizes else "")
