"""The devices of a run, and settings of JAX that must be made before they are touched."""

import ctypes
import importlib.util
import logging
import os
import pkgutil
import platform
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from ponente.config.errors import RefusedError
from ponente.train.trainer import TrainerConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's mallopt
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_DEFAULTS: Mapping[str, Any] = {"jax_threefry_partitionable": True}

logger = logging.getLogger(__name__)


def prepare_devices(trainer: TrainerConfig) -> None:
    """Applies the trainer's settings of JAX, and refuses a machine without an accelerator where one is required."""
    if has_only_cpu():
        keep_memory()
    if trainer.deterministic and _DETERMINISTIC not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC}".strip()
    if trainer.jax_compilation_cache_dir is not None:
        jax.config.update("jax_compilation_cache_dir", trainer.jax_compilation_cache_dir)
        compilation_cache.reset_cache()  # or the folder of an earlier run in this process would be used
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    for key, value in {**_DEFAULTS, **trainer.jax_config}.items():
        jax.config.update(key, value)
    if jax.default_backend() != "cpu" and len(jax.devices()) > 1:
        logger.warning("found %d devices, of which one is used (not yet: several)", len(jax.devices()))
    if trainer.require_accelerator and jax.default_backend() == "cpu":
        raise RefusedError(
            "found no accelerator (JAX sees CPUs alone), but trainer.require_accelerator: true; needed a GPU or TPU. "
            "Install JAX for it (pip install 'ponente[gpu]'), or remove the key."
        )


def has_only_cpu() -> bool:
    """Whether JAX will run on the CPU, told without starting it: no other platform is asked for, or none installed."""
    if asked := jax.config.jax_platforms:
        return bool(asked == "cpu")
    plugins = importlib.util.find_spec("jax_plugins")
    found = [] if plugins is None else pkgutil.iter_modules(plugins.submodule_search_locations)
    return not any((*found, *entry_points(group="jax_plugins"), importlib.util.find_spec("libtpu")))


def keep_memory() -> None:
    """Makes this process keep what it frees, for a computation on the CPU that takes the same memory again each step.

    By default glibc gives large blocks back, and the next step pays a page fault for every 4 KiB of them: a sixth of
    the time of a small model's step. One arena, because a thread's own holds no large block: so this comes before the
    threads of JAX.
    """
    libc = ctypes.CDLL(None)
    if platform.libc_ver()[0] == "glibc":
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1)):
            libc.mallopt(option, value)


def describe_devices() -> str:
    """The devices in words: `1 NVIDIA H200`."""
    devices = jax.devices()
    return f"{len(devices)} {devices[0].device_kind}"
