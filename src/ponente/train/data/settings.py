"""What `ponente data` reads of a training config: the data section, and how long a row, a batch and a run are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ponente.batches.schedule import BatchSchedule
from ponente.batches.shape import BatchShape
from ponente.batches.training import TrainingData, training_data
from ponente.config.errors import RefusedError
from ponente.config.load import load_config
from ponente.tokens.command import NOT_DATA
from ponente.tokens.spec import cache_specs
from ponente.train.data.caches import OpenData
from ponente.train.data.config import TrainDataConfig
from ponente.train.length import RunLength

_ROW_LENGTHS = {"gpt2": 1024}  # where the config says nothing, by the type of model
_ROW_LENGTH = 2048
_TRAINER_KEYS = (  # that batches do not depend on
    *("mp", "id", "per_device_parallelism", "per_device_eval_parallelism", "steps_per_eval", "max_eval_batches"),
    *("load_checkpoint", "load_checkpoint_path", "initialize_from", "allow_partial_checkpoint", "log_dir", "wandb"),
    *("tracker", "watch", "profiler", "profiler_start_step", "profiler_num_steps", "crash_on_nan", "crash_on_inf"),
    *("quantization", "model_averaging", "jax_config", "jax_compilation_cache_dir", "require_accelerator"),
    *("distributed", "deterministic", "progress_watchdog", "fsdp_axis", "batch_axis", "tensor_parallel_axes"),
    *("model_axis_size", "replica_dcn_axis_size", "replica_ici_axis_size", "axis_resources"),
    *("parameter_axis_resources", "mesh", "checkpointer", "offload_optimizer"),
)
_MODEL_KEYS = (
    *("hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "activation_function"),
    *("initializer_range", "layer_norm_epsilon", "tie_word_embeddings", "use_qk_norm", "hybrid_norm", "use_bias"),
    *("upcast_attn", "attn_backend", "gradient_checkpointing", "scan_layers", "rope", "input_embedding_norm"),
    *("use_layer_norm_weight", "scale_attn_by_inverse_layer_idx", "embed_pdrop", "resid_pdrop", "attn_pdrop"),
    *("mlp_scale", "preset", "sliding_window", "num_experts", "num_experts_per_tok", "reference_checkpoint"),
    *("rotary_pct", "use_parallel_residual", "dense_conn", "dynamic_dense_type", "dynamic_dense_act_cls"),
    *("dynamic_dense_fix_last_layer", "dynamic_dense_hidden_expand", "dynamic_dense_hidden_round", "dynamic_mlp_dim"),
    *("mudd_prenorm", "mudd_postnorm", "mudd_static", "mudd_dynamic", "mudd_dilation", "mudd_period"),
    *("tokenizer", "attn_config", "d_model", "n_heads", "n_layers", "use_flash_attention"),
)
PASSED_OVER = (
    *(key for key in NOT_DATA if key not in ("model", "trainer", "train_seq_len", "data_seed")),
    *(f"trainer.{key}" for key in _TRAINER_KEYS),
    *(f"model.{key}" for key in _MODEL_KEYS),
)


@dataclass(frozen=True, kw_only=True)
class ModelLength:
    """The part of the model's section that batches follow from."""

    type: str | None = None
    max_seq_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What decides the batches of a run."""

    data: TrainDataConfig
    trainer: RunLength = field(default_factory=RunLength)
    model: ModelLength = field(default_factory=ModelLength)
    train_seq_len: int | None = None
    data_seed: int | None = None

    @property
    def seed(self) -> int:
        return self.trainer.seed if self.data_seed is None else self.data_seed

    def shape(self) -> BatchShape:
        """The shape of a batch."""
        lengths = (self.train_seq_len, self.model.max_seq_len, _ROW_LENGTHS.get(self.model.type or "", _ROW_LENGTH))
        length = next(one for one in lengths if one is not None)
        if length < 2:
            raise RefusedError(f"found rows of {length} tokens; needed 2 or more. Set train_seq_len.")
        return BatchShape(
            length=length,
            max_documents=self.data.documents_per_row(length),
            blocks_documents=self.data.block_cross_document_attention,
        )

    def schedule(self) -> BatchSchedule:
        """The batch sizes."""
        return BatchSchedule.of(self.trainer.train_batch_size)

    def check(self) -> None:
        """Refuses what never could work, before anything is tokenized."""
        trained = [spec.name.rpartition("/")[0] for spec in cache_specs(self.data) if spec.split == "train"]
        self.trainer.check()
        self.shape()
        self.data.check_names(trained)
        self.data.check_budgets()
        self.data.order()
        self.data.stages(trained, self.schedule(), [name for name in self.data.components if name not in trained])

    def training_data(self, opened: OpenData) -> TrainingData:
        """The stream of batches over the opened caches."""
        untrained = [name for name in self.data.components if name not in opened.train]
        return training_data(self.data, opened.train, self.schedule(), self.shape(), self.seed, untrained=untrained)


def load_settings(config_path: str | None, flags: Sequence[str]) -> DataSettings:
    """Reads the settings from a training config and flags."""
    if config_path is None and not any(flag.startswith("--data") for flag in flags):
        raise RefusedError(
            "found no --config_path; needed a YAML training config whose data section names a dataset. "
            "Write: ponente data stats --config_path CONFIG.yaml"
        )
    return load_config(DataSettings, config_path, flags, passed_over=PASSED_OVER).config
