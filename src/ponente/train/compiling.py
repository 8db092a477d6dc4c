"""The step of a run as a program: from its setup, and with as many rows at once as fit.

In: a setup, or a config alone. Out: a `TrainStep`, and the setup with the rows at once that it takes.
"""

import math
from collections.abc import Sequence

import jax
import optax

from ponente.batches.loader import abstract_batch, local_rows
from ponente.train.beginning import abstract_state, abstract_state_of
from ponente.train.config import TrainConfig
from ponente.train.fitting import Need, bytes_of_part, device_memory, largest_that_fits
from ponente.train.mesh import batch_sharding
from ponente.train.setup import ModelSetup, Setup, set_up_model
from ponente.train.step import StepSettings, TrainStep


def step_settings(model: ModelSetup, optimizer: optax.GradientTransformation, steps: int) -> StepSettings:
    """What the step of a run of so many is compiled from."""
    config, trainer = model.config, model.config.trainer
    averaging = trainer.model_averaging
    return StepSettings(
        optimizer=optimizer,
        learning_rates=config.optimizer.learning_rates(steps),
        precision=trainer.precision,
        has_fp8=trainer.has_fp8,
        layout=model.layout,
        specs=model.specs,
        seed=trainer.seed,
        vocab_size=model.vocab_size,
        blocks_documents=config.shape().blocks_documents,
        z_loss=config.z_loss_weight,
        microbatch=trainer.microbatch,
        average_beta=None if averaging is None else averaging.beta,
        offloads_optimizer=trainer.offload_optimizer,
        watch=trainer.watch,
    )


def lower_step(config: TrainConfig, devices: Sequence[jax.Device] | None = None) -> jax.stages.Lowered:
    """The step of a config, with its first batch size, from shapes alone: no data is opened and no weight is made.

    Args:
        devices: that it is for, and that need not be there; None: those that are.
    """
    model = set_up_model(config, devices)
    config, steps = model.config, model.config.trainer.planned_steps
    optimizer = config.optimizer.build(model.parameters, steps)
    batch = abstract_batch(config.shape(), config.batches.schedule().size(0), batch_sharding(model.layout))
    return TrainStep(step_settings(model, optimizer, steps)).lower(abstract_state_of(model, optimizer), batch)


def step_of(setup: Setup, first: int) -> tuple[Setup, TrainStep]:
    """The step of a run, and its setup, in which `auto` has become the rows at once that fit.

    Args:
        first: the step that comes next, by whose documents the tables of a batch are measured.
    """
    if not setup.config.trainer.finds_microbatch or first >= setup.steps:
        return setup, _step(setup)
    batch_sizes = setup.config.trainer.batch_sizes
    here = math.gcd(*batch_sizes) // setup.row_parts
    steps: dict[int, tuple[Setup, TrainStep]] = {}

    def need(rows: int) -> Need:
        given = setup.with_rows_at_once(rows)
        steps[rows] = given, _step(given)
        batch = abstract_batch(setup.shape, max(batch_sizes), batch_sharding(setup.layout), _places(given, first))
        found = steps[rows][1].need(abstract_state(given), batch)
        of_all = setup.gang.gather(f"need of {rows} rows", [found.state, found.temporary])
        return Need(*map(max, zip(*of_all, strict=True)))

    sizes = [rows for rows in range(1, here + 1) if here % rows == 0]
    memory = min(setup.gang.gather("memory of devices", device_memory()))
    rows, _ = largest_that_fits(sizes, need, _gradient_bytes(setup), memory)
    return steps[rows]


def _step(setup: Setup) -> TrainStep:
    return TrainStep(step_settings(setup, setup.optimizer, setup.steps))


def _places(setup: Setup, step: int) -> int:
    """How many places a row the tables of a step's documents have; 0 where its kernel takes none."""
    together = setup.rows_together()
    if together is None:
        return 0
    size = setup.data.stream.schedule.size(step)
    rows = local_rows(batch_sharding(setup.layout), size)
    batch = setup.data.stream.begin(step, rows).finish(together(size))
    name, here = f"tables with {together(size)} rows together", batch.document_starts_BM.shape[1]
    places: int = max(setup.gang.gather(name, here))
    return places


def _gradient_bytes(setup: Setup) -> int:
    """Bytes of the gradients on one device."""
    return sum(bytes_of_part(array) for array in jax.tree.leaves(abstract_state(setup).model))
