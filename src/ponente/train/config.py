"""A training run, whole: what `ponente train --config_path C.yaml` reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ponente.batches.shape import BatchShape
from ponente.config import observation
from ponente.config.errors import RefusedError
from ponente.config.left_out import refuse_not_yet
from ponente.config.load import Loaded, load_config
from ponente.config.tree import Tree
from ponente.models.families import lm_families, refuse_later_families
from ponente.models.llama import LlamaConfig
from ponente.models.lm import LmConfig
from ponente.models.presets import expand_preset
from ponente.models.stack import check_checkpointing
from ponente.train.data.config import TrainDataConfig
from ponente.train.data.settings import DataSettings, ModelLength
from ponente.train.optimizers import AdamConfig, OptimizerConfig
from ponente.train.precision import FLOAT_TYPES
from ponente.train.trainer import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Data, model, optimizer and trainer, where weights come from and where they go."""

    data: TrainDataConfig = field(default_factory=TrainDataConfig)
    model: LmConfig = field(default_factory=LlamaConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    train_seq_len: int | None = None  # None: model.max_seq_len
    data_seed: int | None = None  # None: trainer.seed
    epoch: int = 0  # the most epochs, beside the length that the trainer says; 0: any number
    z_loss_weight: float = 0.0
    initialize_from_hf: bool | str = False  # a folder, URL or hub name[@revision]; true: the family's usual one
    use_hf_model_config: bool = False
    pad_tokenizer_to_match_model: bool = False
    initialize_from_checkpoint_path: str | None = None  # the whole state, at step 0
    initialize_model_from_checkpoint_path: str | None = None  # weights alone
    hf_save_path: str | None = observation(None)
    hf_save_steps: int | None = observation(10000)
    hf_upload: bool | str | None = observation(None)
    hf_save_dtype: str | None = observation(None)  # None: that of the parameters
    hf_generation_eos_token_ids: tuple[int, ...] | None = observation(None)
    log_entropy: bool = observation(False)

    @property
    def batches(self) -> DataSettings:
        """What decides the batches."""
        return DataSettings(
            data=self.data,
            trainer=self.trainer,
            model=ModelLength(max_seq_len=self.model.max_seq_len),
            train_seq_len=self.train_seq_len,
            data_seed=self.data_seed,
        )

    def shape(self) -> BatchShape:
        """The shape of a batch."""
        return replace(self.batches.shape(), positions=self.model.positions)

    @property
    def hf_source(self) -> str | None:
        """Where weights of a Hugging Face model are taken from, if they are."""
        if self.initialize_from_hf is False:
            return None
        if isinstance(self.initialize_from_hf, str):
            return self.initialize_from_hf
        return self.model.reference_checkpoint or self.model.usual_reference

    def check(self) -> None:
        """Refuses what could never work, before anything is read, built or computed."""
        self.trainer.check()
        self.batches.check()
        self.optimizer.check()
        self._check_beginning()
        check_checkpointing(self.model.gradient_checkpointing, is_scanned=self.model.scan_layers)
        if self.epoch < 0:
            raise RefusedError(f"found epoch: {self.epoch}; needed 0 (any number) or more. Change it.")
        if self.z_loss_weight < 0:
            raise RefusedError(f"found z_loss_weight: {self.z_loss_weight}; needed 0 or more. Change it.")
        if self.hf_save_dtype is not None and self.hf_save_dtype not in FLOAT_TYPES:
            raise RefusedError(
                f"found hf_save_dtype: {self.hf_save_dtype}; needed one of {', '.join(FLOAT_TYPES)}. Change it."
            )
        if self.hf_save_steps is not None and self.hf_save_steps < 1:
            raise RefusedError(f"found hf_save_steps: {self.hf_save_steps}; needed 1 or more, or null. Change it.")
        if self.hf_upload and self.hf_save_path is None:
            raise RefusedError(
                f"found hf_upload: {self.hf_upload} without hf_save_path; needed a folder that is uploaded. Set one."
            )
        if self.hf_upload is True and not isinstance(self.initialize_from_hf, str):
            raise RefusedError("found hf_upload: true; needed the name of a repository. Write hf_upload: org/name.")
        if self.use_hf_model_config and self.hf_source is None:
            raise RefusedError(
                "found use_hf_model_config: true without initialize_from_hf; needed the model whose config is used. "
                "Set initialize_from_hf to a folder or hub name."
            )
        if not self.use_hf_model_config:  # else the lengths are not known yet
            self.check_length()
        if self.hf_save_path is not None and not self.use_hf_model_config:
            self.model.to_hf(vocab_size=1)  # refuses what transformers has no model for

    def check_length(self) -> None:
        """Refuses rows that are longer than the model can see."""
        if self.shape().length > self.model.max_seq_len:
            raise RefusedError(
                f"found train_seq_len: {self.train_seq_len} above model.max_seq_len: {self.model.max_seq_len}; needed "
                "rows that the model can see. Lower the one or raise the other."
            )

    def _check_beginning(self) -> None:
        if self.initialize_from_hf is True and self.hf_source is None:
            raise RefusedError(
                "found initialize_from_hf: true for a family without a usual model; needed one to take weights from. "
                "Set initialize_from_hf to a folder or hub name."
            )
        given = {
            "initialize_from_hf": self.hf_source,
            "initialize_from_checkpoint_path": self.initialize_from_checkpoint_path,
            "initialize_model_from_checkpoint_path": self.initialize_model_from_checkpoint_path,
            "trainer.initialize_from": self.trainer.initialize_from,
        }
        said = [f"{key}: {value}" for key, value in given.items() if value is not None]
        if len(said) > 1:
            raise RefusedError(f"found {' and '.join(said)}; needed one place to begin from. Keep the one that counts.")


def load_train_config(config_path: str | None, flags: Sequence[str] = ()) -> Loaded[TrainConfig]:
    """Reads a training config from YAML and flags, in either Levanter schema."""
    if config_path is None and not any(flag.startswith("--data") for flag in flags):
        raise RefusedError(
            "found no --config_path; needed a YAML training config. Write: ponente train --config_path CONFIG.yaml"
        )
    lm_families()
    return load_config(TrainConfig, config_path, flags, check=check_keys)


def check_keys(tree: Tree) -> None:
    """Refuses what does not work yet, drops keys that ask for nothing, and puts the keys of a preset in its place."""
    refuse_not_yet(tree)
    refuse_later_families(tree)
    expand_preset(tree)
