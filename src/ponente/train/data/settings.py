"""What `ponente data` reads of a training config: the data section, and how long a row, a batch and a run are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ponente.batches.schedule import BatchSchedule, BatchStage
from ponente.batches.shape import BatchShape
from ponente.batches.stream import BatchStream
from ponente.batches.training import TrainingData, training_data
from ponente.config.errors import RefusedError
from ponente.config.load import load_config
from ponente.tokens.command import NOT_DATA
from ponente.train.data.caches import OpenData
from ponente.train.data.config import TrainDataConfig

_ROW_LENGTHS = {"gpt2": 1024}  # where the config says nothing, by the type of model
_ROW_LENGTH = 2048
_STEPS = 400_000
_PASSED_OVER = (
    *(key for key in NOT_DATA if key not in ("model", "trainer", "train_seq_len", "data_seed")),
    "model.!max_seq_len|seq_len|type",
    "trainer.!train_batch_size|seed|num_train_steps|num_train_tokens|num_train_epochs",
)


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The part of the trainer's section that batches follow from."""

    train_batch_size: int | list[BatchStage] = 512
    seed: int = 0
    num_train_steps: int | None = None
    num_train_tokens: int | None = None
    num_train_epochs: int | None = None

    def steps(self, stream: BatchStream) -> int:
        """How many steps the run takes, in whichever way its length was given."""
        given = {
            "num_train_steps": self.num_train_steps,
            "num_train_tokens": self.num_train_tokens,
            "num_train_epochs": self.num_train_epochs,
        }
        said = [f"trainer.{key}: {value}" for key, value in given.items() if value is not None]
        if len(said) > 1:
            raise RefusedError(f"found {' and '.join(said)}; needed at most one of them. Keep the one that counts.")
        if self.num_train_epochs is not None:
            return stream.steps_for_epochs(self.num_train_epochs)
        if self.num_train_tokens is not None:
            return stream.steps_for_tokens(self.num_train_tokens)
        asked = _STEPS if self.num_train_steps is None else self.num_train_steps
        return asked if stream.steps is None else min(asked, stream.steps)


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
        length = self.train_seq_len or self.model.max_seq_len or _ROW_LENGTHS.get(self.model.type or "", _ROW_LENGTH)
        if length < 2:
            raise RefusedError(f"found rows of {length} tokens; needed 2 or more. Set train_seq_len.")
        return BatchShape(
            length=length,
            max_documents=self.data.document_tables(length),
            blocks_documents=self.data.block_cross_document_attention,
        )

    def schedule(self) -> BatchSchedule:
        """The batch sizes."""
        return BatchSchedule.of(self.trainer.train_batch_size)

    def training_data(self, opened: OpenData) -> TrainingData:
        """The stream of batches over the opened caches."""
        untrained = [name for name in self.data.components if name not in opened.train]
        return training_data(self.data, opened.train, self.schedule(), self.shape(), self.seed, untrained=untrained)


def load_settings(config_path: str | None, flags: Sequence[str]) -> DataSettings:
    """Reads the settings from a training config and flags."""
    return load_config(DataSettings, config_path, flags, passed_over=_PASSED_OVER).config
