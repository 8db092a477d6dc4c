"""A run's model as a Hugging Face folder, during and after training."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ponente.cluster.gang import from_first, is_first
from ponente.config.errors import UserError
from ponente.models.hf_card import ModelCard
from ponente.models.hf_export import has_hf_model, save_hf_model
from ponente.store.paths import absolute, join
from ponente.tokens.load import tokenizer_files
from ponente.tokens.passthrough import PASSTHROUGH
from ponente.train.config import TrainConfig
from ponente.train.mesh import whole_on_host
from ponente.train.precision import FLOAT_TYPES
from ponente.train.setup import ModelSetup, Setup
from ponente.train.state import TrainState

logger = logging.getLogger(__name__)


def export_model(place: str, model: Any, setup: ModelSetup, card: ModelCard) -> str:
    """Writes weights as a folder that transformers loads, with the tokenizer; gives back where it lies."""
    config, tokenizer = setup.config, setup.tokenizer
    eos_ids = (tokenizer.eos_id,) if tokenizer.eos_id is not None else ()
    return save_hf_model(
        place,
        model,
        setup.model,
        vocab_size=setup.vocab_size,
        tokenizer_files={} if tokenizer.name == PASSTHROUGH else tokenizer_files(tokenizer.name),
        card=card,
        dtype=None if config.hf_save_dtype is None else FLOAT_TYPES[config.hf_save_dtype],
        bos_id=tokenizer.bos_id,
        eos_ids=config.hf_generation_eos_token_ids or eos_ids,
    )


@dataclass(frozen=True, kw_only=True)
class ExportHook:
    """Exports every so many steps, and at the end, to `hf_save_path/RUN_ID/step_N`."""

    setup: Setup
    run_id: str
    folder: str
    eval_loss: Callable[[], float | None]

    def place(self, step: int) -> str:
        """Where the model of a step lies."""
        return join(self.folder, self.run_id, f"step_{step}")

    def is_due(self, step: int, *, is_last: bool) -> bool:
        every = self.setup.config.hf_save_steps
        return is_last or (every is not None and step > 0 and step % every == 0)

    def __call__(self, state: TrainState, step: int) -> None:
        place = self.place(step)
        gang = self.setup.gang
        is_there = from_first(gang, f"whether {place} is there", has_hf_model(place))
        model = whole_on_host(state.evaluated) if gang.count > 1 and not is_there else state.evaluated
        if is_first(gang):
            self._export(place, model, step, is_there=is_there)
        gang.gather(f"export of step {step}")

    def _export(self, place: str, model: Any, step: int, *, is_there: bool) -> None:
        config = self.setup.config
        if is_there:
            logger.info("%s is there already", place)
        else:
            rows = self.setup.data.stream.schedule.first_example(step)
            card = ModelCard(
                name=self.run_id,
                run_id=self.run_id,
                steps=step,
                tokens=rows * self.setup.shape.length,
                data=tuple(self.setup.data.orders),
                eval_loss=self.eval_loss(),
                base_model=config.hf_source,
            )
            export_model(place, model, self.setup, card)
            logger.info("exported %s", place)
        if (repository := upload_to(config)) is not None:
            from ponente.models.hf_hub import upload_folder

            try:
                upload_folder(place, repository)
            except UserError as error:
                if step == self.setup.steps:
                    raise
                logger.warning("%s was not uploaded (%s); training goes on", place, error)


def export_hook(setup: Setup, run_id: str, eval_loss: Callable[[], float | None]) -> ExportHook | None:
    """The export of a run; None where it has no `hf_save_path`."""
    if setup.config.hf_save_path is None:
        return None
    folder = absolute(setup.config.hf_save_path)
    return ExportHook(setup=setup, run_id=run_id, folder=folder, eval_loss=eval_loss)


def upload_to(config: TrainConfig) -> str | None:
    """The repository that exports go to, if any; `true` means the one that weights came from."""
    if config.hf_upload is True:
        return str(config.initialize_from_hf).partition("@")[0]
    return config.hf_upload or None
