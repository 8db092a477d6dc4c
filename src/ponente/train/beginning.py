"""Where a run begins: at its own last checkpoint, at another run's, at a Hugging Face model, or at random weights.

A run's own checkpoint goes before all others, so that the same command starts a run and goes on with it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import optax

from ponente.config.errors import RefusedError, UserError
from ponente.models.families import hf_differences
from ponente.models.hf_import import load_hf_weights
from ponente.models.saved import checkpoint_in
from ponente.models.vocabulary import padded
from ponente.store.checkpoint import CheckpointMetadata, load, read_metadata, whole_checkpoints
from ponente.train.changes import other_model
from ponente.train.config import TrainConfig
from ponente.train.mesh import placed, state_shardings
from ponente.train.offload import made_on_host, on_host
from ponente.train.setup import ModelSetup, Setup
from ponente.train.state import TrainState, first_state, named_arrays, state_of, with_arrays
from ponente.train.trainer import TrainerConfig

_WEIGHTS = "model."  # begins their names in a checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a run goes on from, and what it says of itself."""

    path: str
    metadata: CheckpointMetadata

    @property
    def step(self) -> int:
        return self.metadata.step


def find_resumption(trainer: TrainerConfig, run_id: str) -> Resumption | None:
    """The checkpoint to go on from, if there is one; nothing of its arrays is read yet.

    A run that began from `load_checkpoint_path` and was stopped goes on from its own, which are later.
    """
    if trainer.load_checkpoint is False and trainer.load_checkpoint_path is None:
        return None
    newest = trainer.checkpoints.newest(run_id)
    own = None if newest is None else Resumption(newest, read_metadata(newest))
    if trainer.load_checkpoint_path is not None:
        path = checkpoint_at(trainer.load_checkpoint_path, "trainer.load_checkpoint_path")
        given = Resumption(path, read_metadata(path))
        return own if own is not None and own.step > given.step else given
    if own is not None:
        return own
    if trainer.load_checkpoint is True:
        places = " or ".join(trainer.checkpoints.folders(run_id))
        raise RefusedError(
            f"found no checkpoint in {places}, but trainer.load_checkpoint: true; needed one. Set trainer.id to the "
            "run's, or leave load_checkpoint out."
        )
    return None


def checkpoint_at(place: str, key: str, instead: str = "") -> str:
    """A checkpoint, or the newest one in a folder of them.

    Args:
        key: where the place was written, for the error.
        instead: what else may be given, for the error too.
    """
    path = checkpoint_in(place)
    if path is None:
        folder = place.rstrip("/").rpartition("/")[0] or "."
        there = ", ".join(f"step-{step}" for step in whole_checkpoints(folder))
        raise RefusedError(
            f"found no checkpoint at {key}: {place}; needed one, or a folder of several"
            f"{f' ({folder} has {there})' if there else ''}. Check the path{f', {instead}' if instead else ''}."
        )
    return path


def source_of(config: TrainConfig) -> str | None:
    """The checkpoint that a new run begins from, if from one; an error where it is not there."""
    for key, place in {
        "trainer.initialize_from": config.trainer.initialize_from,
        "initialize_from_checkpoint_path": config.initialize_from_checkpoint_path,
        "initialize_model_from_checkpoint_path": config.initialize_model_from_checkpoint_path,
    }.items():
        if place is not None:
            return checkpoint_at(place, key)
    return None


def tell_other_model(setup: Setup) -> None:
    """Says what a new run would compute with the weights that it begins with, and those who made them did not."""
    place = source_of(setup.config)
    if place is not None:
        stored = read_metadata(place).about.get("config", {}).get("model")
        changes = [] if stored is None else other_model(setup.model, stored)
    elif setup.hf is not None:
        place = setup.hf.place
        try:
            changes = hf_differences(setup.hf.config, setup.model)
        except UserError as error:  # a model that is not known here may still have the same weights as one that is
            logger.warning("whether %s computes what this model does is not known: %s", place, error)
            return
    else:
        return
    for change in changes:
        logger.warning("the weights of %s were made for another model: %s", place, change)


def begin(setup: Setup, resumption: Resumption | None) -> TrainState:
    """The state of a run before its next step, on the device."""
    config, trainer = setup.config, setup.config.trainer
    is_partial = trainer.allow_partial_checkpoint
    if resumption is not None:
        logger.info("going on at step %s, from %s", f"{resumption.step:,}", resumption.path)
        return _loaded(setup, resumption.path, is_partial=is_partial)
    if (path := source_of(config)) is not None:
        if config.initialize_model_from_checkpoint_path is not None:
            return _with_weights(setup, _weights(setup, path, is_partial=is_partial))
        state = _loaded(setup, path, is_partial=is_partial)
        return state if trainer.initialize_from is not None else state.restarted()
    if setup.hf is not None:
        dtype = trainer.precision.parameters
        return _with_weights(
            setup, load_hf_weights(setup.hf, setup.model, padded(setup.vocab_size), dtype, extra_rows="cut")
        )
    return _first(setup)


def _first(setup: Setup) -> TrainState:
    return _made(setup, lambda: _traced(setup, setup.optimizer))


def _made(setup: Setup, make: Callable[..., TrainState], *given: Any) -> TrainState:
    """The state that a function makes, each array in its place."""
    places = _shardings(setup)
    if not setup.config.trainer.offload_optimizer:
        state: TrainState = jax.jit(make, out_shardings=places)(*given)
        return state
    others = jax.jit(
        lambda *given: replace(make(*given), optimizer=None), out_shardings=replace(places, optimizer=None)
    )(*given)
    optimizer = made_on_host(lambda *given: make(*given).optimizer, places.optimizer, *given)
    whole: TrainState = replace(others, optimizer=optimizer)
    return whole


def _shardings(setup: Setup) -> Any:
    """Where each array of the state lies; None: on the one device."""
    if setup.layout is None and not setup.config.trainer.offload_optimizer:
        return None
    return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(setup))


def abstract_state(setup: Setup) -> TrainState:
    """The shapes of a run's state."""
    return abstract_state_of(setup, setup.optimizer)


def abstract_state_of(model: ModelSetup, optimizer: optax.GradientTransformation) -> TrainState:
    """The shapes of the state of a run of this model, whatever its data, and how it lies on several devices."""
    shapes: TrainState = jax.eval_shape(lambda: _traced(model, optimizer))
    if model.layout is not None:
        places = state_shardings(model.layout, model.specs, shapes)
        shapes = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places
        )
    return on_host(shapes) if model.config.trainer.offload_optimizer else shapes


def _traced(model: ModelSetup, optimizer: optax.GradientTransformation) -> TrainState:
    trainer = model.config.trainer
    return first_state(
        model.parameters,
        optimizer,
        trainer.seed,
        trainer.precision.parameters,
        is_averaged=trainer.model_averaging is not None,
    )


def _loaded(setup: Setup, path: str, *, is_partial: bool) -> TrainState:
    shapes = abstract_state(setup)
    arrays = load(path, named_arrays(shapes), allow_missing=is_partial, every=_WEIGHTS)
    state = (
        with_arrays(_first(setup), arrays) if len(arrays) < len(named_arrays(shapes)) else with_arrays(shapes, arrays)
    )
    whole: TrainState = state
    return whole


def _weights(setup: Setup, path: str, *, is_partial: bool) -> Any:
    """The weights of a checkpoint; those that it lacks, where that is allowed, as they would begin."""
    model = {f"{_WEIGHTS}{name}": shape for name, shape in named_arrays(abstract_state(setup).model).items()}
    read = load(path, model, allow_missing=is_partial, every=_WEIGHTS)
    arrays = {name.removeprefix(_WEIGHTS): array for name, array in read.items()}
    return with_arrays(_first(setup).model if len(arrays) < len(model) else abstract_state(setup).model, arrays)


def _with_weights(setup: Setup, model: Any) -> TrainState:
    is_averaged, places = setup.config.trainer.model_averaging is not None, _shardings(setup)
    model = model if places is None else placed(model, places.model)
    return _made(setup, lambda model: state_of(model, setup.optimizer, is_averaged=is_averaged), model)
