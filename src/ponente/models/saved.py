"""A model that was saved, ready to be used: a checkpoint of a run, or a Hugging Face folder.

In: a place. Out: the family's config, how many ids there are, the weights on a device, and where its tokenizer lies.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ponente.config.decode import decode
from ponente.config.errors import RefusedError, UserError
from ponente.config.tree import Tree
from ponente.models.families import lm_config_from_hf, lm_families
from ponente.models.hf_folder import CONFIG, open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.lm import LanguageModel, LmConfig
from ponente.models.parameters import abstract, path_name
from ponente.models.vocabulary import padded
from ponente.store.checkpoint import CheckpointMetadata, load, newest, runs_in
from ponente.store.checkpoint.record import find_metadata
from ponente.store.paths import absolute, join, parent
from ponente.store.volume import volume_of

TOKENIZER = "tokenizer"  # the folder beside a run's checkpoints
_TOLD = 8  # runs that a message names


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A model and what belongs to it."""

    place: str
    config: LmConfig
    vocab_size: int  # ids; the weights may have more rows
    weights: LanguageModel
    tokenizer: str  # a folder, or what the run's config named
    about: dict[str, Any]  # what the checkpoint says of its run; of a Hugging Face folder nothing
    end_ids: tuple[int, ...] = ()  # that end a text, besides the tokenizer's end token


def load_saved_model(place: str, dtype: DTypeLike | None = None) -> SavedModel:
    """The model at a place: a checkpoint, a folder of checkpoints (the newest), a Hugging Face folder or hub name.

    Args:
        dtype: of the weights; by default as they were saved.
    """
    path = checkpoint_in(place)
    return _from_hf(place, dtype) if path is None else _from_checkpoint(path, dtype)


def checkpoint_in(place: str) -> str | None:
    """The checkpoint that a place is, or the newest one in it; None where there is none.

    A folder of several runs is refused: which of them is meant, nobody knows.
    """
    if "@" in place and "://" not in place:
        return None
    folder = absolute(place)
    try:
        found = folder if find_metadata(folder) is not None else newest(folder)
        runs = [] if found or CONFIG in volume_of(folder).names(folder) else runs_in(folder)
    except UserError:  # a place that holds no checkpoints, such as a URL that is only read
        return None
    if runs:
        more = f" and {len(runs) - _TOLD} more" if len(runs) > _TOLD else ""
        raise RefusedError(
            f"found {place}, which holds checkpoints of {', '.join(runs[:_TOLD])}{more}; needed a checkpoint, or the "
            f"folder of one run. Give {place.rstrip('/')}/{runs[0]}"
        )
    return found


def _from_checkpoint(path: str, dtype: DTypeLike | None) -> SavedModel:
    metadata = find_metadata(path)
    assert metadata is not None
    about = metadata.about
    if not {"config", "vocab_size"} <= about.keys():
        raise UserError(
            f"found {path}, whose record does not say of which model it is; needed a checkpoint of ponente train. "
            "Give another."
        )
    lm_families()
    config: LmConfig = decode(LmConfig, Tree.of(about["config"]["model"]))  # type: ignore[type-abstract]
    return SavedModel(
        place=path,
        config=config,
        vocab_size=about["vocab_size"],
        weights=_weights(path, metadata, config, dtype),
        tokenizer=_tokenizer(path, about),
        about=about,
        end_ids=_end_ids(about["config"].get("hf_generation_eos_token_ids")),
    )


def _weights(path: str, metadata: CheckpointMetadata, config: LmConfig, dtype: DTypeLike | None) -> LanguageModel:
    """The average of a run's weights, where it kept one, else the last ones."""
    shapes = abstract(config.parameters(padded(metadata.about["vocab_size"])))
    names = {path_name(where) for where, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]}
    part = "average" if f"average.{next(iter(names))}" in metadata.arrays else "model"
    targets = {
        f"{part}.{path_name(where)}": jax.ShapeDtypeStruct(
            shape.shape, metadata.arrays[f"{part}.{path_name(where)}"].dtype
        )
        for where, shape in jax.tree_util.tree_flatten_with_path(shapes)[0]
        if f"{part}.{path_name(where)}" in metadata.arrays
    }
    arrays = load(path, targets)
    model: LanguageModel = jax.tree_util.tree_map_with_path(
        lambda where, _: jnp.asarray(arrays[f"{part}.{path_name(where)}"], dtype), shapes
    )
    return model


def _tokenizer(path: str, about: dict[str, Any]) -> str:
    kept = join(parent(path), TOKENIZER)
    is_kept = volume_of(kept).published_folder(kept) is not None
    return kept if is_kept else str(about["config"]["data"]["tokenizer"])


def _from_hf(place: str, dtype: DTypeLike | None) -> SavedModel:
    folder = open_hf_model(place)
    config = lm_config_from_hf(folder.config)
    vocab_size = int(folder.config["vocab_size"])
    weights = load_hf_weights(folder, config, padded(vocab_size), None if dtype is None else np.dtype(dtype))
    return SavedModel(
        place=place,
        config=config,
        vocab_size=vocab_size,
        weights=jax.tree.map(jnp.asarray, weights),
        tokenizer=place,
        about={},
        end_ids=_end_ids(folder.generation_config.get("eos_token_id", folder.config.get("eos_token_id"))),
    )


def _end_ids(found: Any) -> tuple[int, ...]:
    """The ids of `eos_token_id`, which may be one, several or none."""
    return (found,) if isinstance(found, int) else tuple(found or ())
