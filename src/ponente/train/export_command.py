"""`ponente export`: a checkpoint as a Hugging Face folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponente.config import execution, observation
from ponente.config.decode import decode
from ponente.config.errors import RefusedError
from ponente.config.load import load_config
from ponente.config.tree import Tree
from ponente.models.families import lm_families
from ponente.models.hf_card import ModelCard
from ponente.models.saved import checkpoint_in, load_saved_model
from ponente.store.checkpoint import read_metadata
from ponente.tokens.load import load_tokenizer
from ponente.train.config import TrainConfig, check_keys
from ponente.train.export import export_model
from ponente.train.setup import ModelSetup


@dataclass(frozen=True, kw_only=True)
class ExportConfig(TrainConfig):
    """A training config, and what of the run is exported to where."""

    checkpoint_path: str | None = execution(None)  # None: the newest of trainer.id
    output_dir: str | None = observation(None)
    upload_to_hf: bool | str | None = observation(None)  # a repository
    override_vocab_size: int | None = None


def export_checkpoint(config_path: str | None, flags: Sequence[str]) -> str:
    """Writes a checkpoint as a Hugging Face folder; gives back where it lies."""
    lm_families()
    given = load_config(ExportConfig, config_path, flags, check=check_keys).config
    if given.output_dir is None:
        raise RefusedError("found no --output_dir; needed a folder to write the model to. Give one.")
    if given.upload_to_hf is True:
        raise RefusedError("found upload_to_hf: true; needed the name of a repository. Write --upload_to_hf org/name.")
    place = export_saved(_checkpoint(given), given.output_dir, given)
    if given.upload_to_hf:
        from ponente.models.hf_hub import upload_folder

        upload_folder(place, given.upload_to_hf)
    return place


def export_saved(path: str, output_dir: str, given: ExportConfig | None = None) -> str:
    """Writes the checkpoint at a path as a Hugging Face folder.

    Args:
        given: keys that go before those of the run.
    """
    given = given or ExportConfig()
    saved, metadata = load_saved_model(path), read_metadata(path)
    trained = decode(TrainConfig, Tree.of(saved.about["config"]))
    config = replace(
        trained,
        model=saved.config,
        hf_save_dtype=given.hf_save_dtype or trained.hf_save_dtype,
        hf_generation_eos_token_ids=given.hf_generation_eos_token_ids or trained.hf_generation_eos_token_ids,
    )
    tokenizer = load_tokenizer(saved.tokenizer, vocab_size=config.data.vocab_size, engine="tokenizers")
    setup = ModelSetup(
        config=config, tokenizer=tokenizer, vocab_size=given.override_vocab_size or saved.vocab_size, hf=None
    )
    run_id = str(saved.about["run_id"])
    card = ModelCard(name=run_id, run_id=run_id, steps=metadata.step, data=tuple(saved.about.get("orders", ())))
    return export_model(output_dir, saved.weights, setup, card)


def _checkpoint(config: ExportConfig) -> str:
    if config.checkpoint_path is not None:
        path = checkpoint_in(config.checkpoint_path)
        place = config.checkpoint_path
    elif config.trainer.id is not None:
        path = config.trainer.checkpoints.newest(config.trainer.id)
        place = config.trainer.checkpoints.folder(config.trainer.id)
    else:
        raise RefusedError(
            "found neither --checkpoint_path nor --trainer.id; needed the checkpoint to export. Give the folder of a "
            "checkpoint or of a run's checkpoints."
        )
    if path is None:
        raise RefusedError(f"found no checkpoint at {place}; needed one to export. Check the path.")
    return path
