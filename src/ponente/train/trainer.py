"""The trainer's section of a config: everything of a run that is neither data, nor model, nor optimizer."""

from dataclasses import dataclass, field
from typing import Any

import jax

from ponente.config import execution, observation
from ponente.config.errors import RefusedError
from ponente.train.averaging import AveragingConfig
from ponente.train.checkpointer import CheckpointerConfig
from ponente.train.distributed import DistributedConfig
from ponente.train.length import RunLength
from ponente.train.mesh import MeshConfig, check_rows
from ponente.train.precision import Precision
from ponente.train.profiling import ProfilerConfig
from ponente.train.quantization import QuantizationConfig
from ponente.train.trackers import LocalTrackerConfig, TrackerConfig
from ponente.train.watch import WatchConfig
from ponente.train.watchdog import WatchdogConfig

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(RunLength):
    """How a run goes."""

    mp: str = "f32"
    quantization: QuantizationConfig | None = None
    id: str | None = execution(None)  # the run's name; with the same one, a command goes on where the last stopped
    per_device_parallelism: int | str = execution(-1)  # rows at once; -1: the whole batch; auto: as many as fit
    per_device_eval_parallelism: int = execution(-1)
    steps_per_eval: int = observation(1000)
    max_eval_batches: int | None = observation(None)
    load_checkpoint: bool | None = execution(None)  # None: if there is one
    load_checkpoint_path: str | None = execution(None)  # instead of the run's own
    initialize_from: str | None = None  # a checkpoint of another run, where this one has none yet
    allow_partial_checkpoint: bool = False  # takes what fits; the rest begins afresh, or is dropped
    log_dir: str = observation("logs/")
    tracker: TrackerConfig | list[TrackerConfig] | None = observation(default_factory=LocalTrackerConfig)
    watch: WatchConfig = observation(default_factory=WatchConfig)
    profiler: ProfilerConfig = observation(default_factory=ProfilerConfig)
    crash_on_nan: bool = execution(True)
    crash_on_inf: bool = execution(True)
    model_averaging: AveragingConfig | None = None
    jax_config: dict[str, Any] = execution(default_factory=dict)
    jax_compilation_cache_dir: str | None = execution(None)
    require_accelerator: bool | None = execution(None)
    deterministic: bool = execution(False)
    offload_optimizer: bool = execution(False)  # what it keeps lies in the host's memory between updates
    mesh: MeshConfig = execution(default_factory=MeshConfig)
    distributed: DistributedConfig = execution(default_factory=DistributedConfig)
    progress_watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    checkpointer: CheckpointerConfig = field(default_factory=CheckpointerConfig)

    @property
    def precision(self) -> Precision:
        return Precision.of(self.mp)

    @property
    def has_fp8(self) -> bool:
        return self.quantization is not None and self.quantization.fp8

    @property
    def batch_sizes(self) -> list[int]:
        """All sizes that batches have in the course of a run."""
        given = self.train_batch_size
        return [one.value for one in given] if isinstance(given, list) else [given]

    @property
    def microbatch(self) -> int | None:
        """Rows of a device at once in training; None for all, or where it is still to be found out."""
        rows = self.per_device_parallelism
        return rows if isinstance(rows, int) and rows != -1 else None

    @property
    def finds_microbatch(self) -> bool:
        """Whether as many rows at once are taken as fit."""
        return self.per_device_parallelism == AUTO

    @property
    def checkpoints(self) -> CheckpointerConfig:
        """When checkpoints are saved, and where they lie."""
        return self.checkpointer.below(self.log_dir)

    @property
    def trackers(self) -> list[TrackerConfig]:
        if self.tracker is None:
            return []
        return self.tracker if isinstance(self.tracker, list) else [self.tracker]

    def check(self) -> None:
        """Refuses what could never work, before devices are touched."""
        super().check()
        _ = self.precision, self.watch.targets
        for key, words in (("per_device_parallelism", (AUTO,)), ("per_device_eval_parallelism", ())):
            rows = getattr(self, key)
            if rows not in (-1, *words) and (isinstance(rows, str) or rows < 1):
                or_auto = ", or auto for as many as fit" if words else ""
                raise RefusedError(
                    f"found trainer.{key}: {rows}; needed 1 or more, or -1 for as many as there are{or_auto}."
                )
        for key in ("steps_per_eval", "max_eval_batches"):
            if (number := getattr(self, key)) is not None and number < 1:
                raise RefusedError(f"found trainer.{key}: {number}; needed 1 or more. Change it.")
        self.mesh.check()
        self.distributed.check()
        check_rows(None, self.batch_sizes, self.microbatch)
        for key in self.jax_config:
            if not hasattr(jax.config, key):
                raise RefusedError(f"found trainer.jax_config.{key}; needed a setting that JAX has. Remove it.")
