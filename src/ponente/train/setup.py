"""A run before its first step: what its config means for this data and this tokenizer.

In: a config. Out: a `Setup`, with the model's sizes, the vocabulary, open caches and batches. Nothing is on a device.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import optax

from ponente.batches.shape import BatchShape
from ponente.batches.training import TrainingData, training_data
from ponente.cluster.gang import Alone, Gang, first_then_others
from ponente.config.errors import RefusedError
from ponente.models.families import lm_config_from_hf
from ponente.models.hf_folder import HfModelFolder, open_hf_model
from ponente.models.lm import LmConfig
from ponente.models.vocabulary import padded
from ponente.ops.mesh import Layout
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer
from ponente.train.config import TrainConfig
from ponente.train.data.caches import OpenData, open_data
from ponente.train.mesh import check_rows, specs_of
from ponente.train.objective import rows_together

logger = logging.getLogger(__name__)

_RUN_TIME = ("attn_backend", "gradient_checkpointing", "scan_layers", "reference_checkpoint")


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """A model and the ids that it knows, from a config alone."""

    config: TrainConfig
    tokenizer: Tokenizer
    vocab_size: int
    hf: HfModelFolder | None  # where its first weights come from, if there
    planned: int | Sequence[jax.Device] | None = None  # devices that need not be there; None: those that are

    @property
    def model(self) -> LmConfig:
        return self.config.model

    @cached_property
    def parameters(self) -> Any:
        """The tree of `Parameter`s."""
        return self.model.parameters(padded(self.vocab_size))

    @cached_property
    def layout(self) -> Layout | None:
        """How the run lies on its devices; None: it has one."""
        mesh, planned = self.config.trainer.mesh, self.planned
        if isinstance(planned, int):
            return mesh.planned_layout(planned)
        return mesh.layout(jax.devices() if planned is None else planned)

    @property
    def row_parts(self) -> int:
        """Into how many parts the rows of a batch are split."""
        return 1 if self.layout is None else self.layout.row_parts

    @cached_property
    def specs(self) -> Any:
        """With a layout, how each parameter is split."""
        return None if self.layout is None else specs_of(self.layout, self.parameters)


@dataclass(frozen=True, kw_only=True)
class EvaluationSetup(ModelSetup):
    """A model and data that it can be evaluated on."""

    opened: OpenData
    gang: Gang = field(default_factory=Alone)  # the processes that do this together

    def widest(self, of: str) -> Callable[[int, int], int] | None:
        """For loaders of this name: of a step and its tables' width here, that of all processes' tables."""
        gang = self.gang
        if gang.count == 1:
            return None
        return lambda step, width: max(gang.gather(f"tables of {of}, step {step}", width))

    @property
    def shape(self) -> BatchShape:
        return self.config.shape()


@dataclass(frozen=True, kw_only=True)
class Setup(EvaluationSetup):
    """What a run is made of."""

    data: TrainingData
    steps: int

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return self.config.optimizer.build(self.parameters, self.steps)

    def rows_together(self) -> Callable[[int], int] | None:
        """Of a batch of so many rows, how many need common tables of documents; None where no kernel takes tables."""
        trainer, blocks_documents = self.config.trainer, self.shape.blocks_documents
        compute, microbatch = trainer.precision.compute, trainer.microbatch
        return rows_together(self.model, compute, microbatch, self.row_parts, blocks_documents=blocks_documents)

    def with_rows_at_once(self, rows: int) -> "Setup":
        """The same with so many rows of a device at once."""
        trainer = replace(self.config.trainer, per_device_parallelism=rows)
        return replace(self, config=replace(self.config, trainer=trainer))


def set_up_model(config: TrainConfig, planned: int | Sequence[jax.Device] | None = None) -> ModelSetup:
    """The model of a config: its sizes are those of a Hugging Face model where the config asks for that.

    Args:
        planned: the devices that it is for, or their number, if not for those that are there.
    """
    hf = None if config.hf_source is None else open_hf_model(config.hf_source)
    if hf is not None and config.use_hf_model_config:
        config = replace(config, model=_hf_model(config.model, hf))
        config.check_length()
    tokenizer = load_tokenizer(config.data.tokenizer, vocab_size=config.data.vocab_size, engine="tokenizers")
    vocab_size = max(tokenizer.vocab_size, config.data.vocab_size or 0)
    if hf is not None and config.pad_tokenizer_to_match_model:
        vocab_size = max(vocab_size, int(hf.config.get("vocab_size", 0)))
    return ModelSetup(config=config, tokenizer=tokenizer, vocab_size=vocab_size, hf=hf, planned=planned)


def set_up(
    config: TrainConfig,
    recorded: Mapping[str, Mapping[str, object]] | None = None,
    gang: Gang | None = None,
) -> Setup:
    """Everything of a run, checked; caches that are missing are built.

    Args:
        recorded: the orders of the data in the run that this one resumes.
        gang: the processes that train together, all of which call this; the first builds caches.
    """
    gang = gang or Alone()
    config.check()
    model = set_up_model(config)
    config = model.config
    check_rows(model.layout, config.trainer.batch_sizes, config.trainer.microbatch)
    _ = model.specs  # refused, if they must be, before caches are built
    with first_then_others(gang, "caches"):  # of which one alone may build one beside training
        opened = open_data(config.data, beside_training=gang.count == 1)
    settings = config.batches
    data = training_data(
        config.data,
        opened.train,
        settings.schedule(),
        config.shape(),
        settings.seed,
        untrained=[name for name in config.data.components if name not in opened.train],
        recorded=recorded,
    )
    steps = config.trainer.steps(data.stream)
    if config.epoch:
        steps = min(steps, data.stream.steps_for_epochs(config.epoch))
    return Setup(
        config=config,
        tokenizer=model.tokenizer,
        vocab_size=model.vocab_size,
        hf=model.hf,
        opened=opened,
        gang=gang,
        data=data,
        steps=steps,
    )


def _hf_model(given: LmConfig, hf: HfModelFolder) -> LmConfig:
    """The sizes of a Hugging Face model, run as the config says."""
    found = lm_config_from_hf(hf.config)
    if type(found) is not type(given):
        raise RefusedError(
            f"found {hf.place}, a {hf.config.get('model_type')}, for model.type: {_name(given)}; needed the same "
            f"family. Set model.type: {_name(found)}."
        )
    return replace(found, **{key: getattr(given, key) for key in _RUN_TIME})


def _name(config: LmConfig) -> str:
    return next(name for name, family in LmConfig.get_known_choices().items() if family is type(config))
