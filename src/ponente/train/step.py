"""One step of training, compiled: gradients of the loss, clipped, by the optimizer to new weights.

In: state and batch. Out: the next state, in the same buffers, and a few numbers. The loss is a sum over tokens divided
once by the sum of their weights, so that a batch taken in parts gives the gradient of the whole.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import PartitionSpec

from ponente.batches.batch import Batch
from ponente.models.lm import Dropout
from ponente.ops.mesh import UNSPLIT, Layout
from ponente.train.fitting import Need, check_step
from ponente.train.norms import Squares, norm, squares
from ponente.train.objective import loss_sums
from ponente.train.offload import on_device
from ponente.train.precision import Precision
from ponente.train.quantization import with_fp8_products
from ponente.train.state import TrainState
from ponente.train.watch import WatchConfig

_DROPOUT = 0x64726F70  # apart from the keys that weights begin with

logger = logging.getLogger(__name__)


class StepMetrics(NamedTuple):
    """What a step says of itself."""

    loss: Array  # with the z-loss
    cross_entropy: Array
    weight: Array  # of all tokens that counted
    grad_norm: Array  # before clipping
    learning_rate: Array
    squares: Squares  # of gradients
    watched: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What a step is compiled from."""

    optimizer: optax.GradientTransformation
    learning_rates: Callable[[Array], Any]
    precision: Precision
    seed: int
    vocab_size: int
    blocks_documents: bool
    watch: WatchConfig
    has_fp8: bool = False  # products of the layers
    z_loss: float = 0.0
    microbatch: int | None = None  # rows of a device at once; None: all
    average_beta: float | None = None  # None: no average
    offloads_optimizer: bool = False  # what it keeps is in the host's memory
    layout: Layout | None = None  # None: one device
    specs: Any = None  # with a layout, how each parameter is split


class TrainStep:
    """The compiled step: one program for each shape of a batch, and one more where histograms are asked for."""

    def __init__(self, settings: StepSettings) -> None:
        self._settings = settings
        self._programs: dict[tuple[int, int, bool], Any] = {}
        everywhere = None if settings.layout is None else settings.layout.sharding(PartitionSpec())
        self._weight_norms = jax.jit(lambda model: settings.watch.norms(params=model), out_shardings=everywhere)

    @property
    def compilations(self) -> int:
        return len(self._programs)

    def __call__(self, state: TrainState, batch: Batch, step: int) -> tuple[TrainState, StepMetrics]:
        """The next state; the one given is used up. `step` is the one that the state is at."""
        watch = self._settings.watch
        program = self._program(state, batch, has_histograms=watch.include_histograms and watch.is_due(step))
        following, metrics = program(state, batch)
        if watch.is_due(step):
            metrics = metrics._replace(watched=metrics.watched | self._weight_norms(following.model))
        return following, metrics

    def lower(self, state: TrainState, batch: Batch, *, has_histograms: bool = False) -> jax.stages.Lowered:
        """The step as a program that is not compiled yet; shapes of the state and the batch are enough."""
        layout = self._settings.layout
        stays = None
        if layout is not None or self._settings.offloads_optimizer:
            # Numbers are on every device, or a process could not read them.
            everywhere = None if layout is None else layout.sharding(PartitionSpec())
            stays = (jax.tree.map(lambda array: array.sharding, state), everywhere)
        step = jax.jit(
            lambda *both: _step(self._settings, *both, has_histograms=has_histograms),
            donate_argnums=0,
            out_shardings=stays,
        )
        return step.lower(state, batch)

    def _program(self, state: TrainState, batch: Batch, *, has_histograms: bool, is_checked: bool = True) -> Any:
        rows, places = batch.document_starts_BM.shape
        key = (rows, places, has_histograms)
        if key not in self._programs:
            began = time.monotonic()
            program = self.lower(state, batch, has_histograms=has_histograms).compile()
            extra = f", of up to {places} documents on average" if places else ""
            extra += ", with histograms" if has_histograms else ""
            need, seconds = Need.of(program), time.monotonic() - began
            logger.info("compiled the step for batches of %d rows%s in %.1f s: it needs %s", rows, extra, seconds, need)
            if is_checked:
                check_step(need, self._settings.microbatch)
            self._programs[key] = program
        return self._programs[key]

    def need(self, state: TrainState, batch: Batch) -> Need:
        """What the step takes of a device, at the most; shapes are enough. The program is kept."""
        has_histograms = self._settings.watch.include_histograms
        return Need.of(self._program(state, batch, has_histograms=has_histograms, is_checked=False))


def _step(
    settings: StepSettings, state: TrainState, batch: Batch, *, has_histograms: bool
) -> tuple[TrainState, StepMetrics]:
    weight = batch.loss_weights_BS.sum(dtype=jnp.float32)
    (loss, cross_entropy), gradients = _gradients(settings, state, batch, jnp.maximum(weight, 1e-6))
    of_gradients = squares(gradients)
    kept = on_device(state.optimizer) if settings.offloads_optimizer else state.optimizer
    updates, optimizer = settings.optimizer.update(gradients, kept, state.model)
    model = optax.apply_updates(state.model, updates)
    watched = settings.watch.norms(grads=gradients, updates=updates)
    if has_histograms:
        watched |= settings.watch.histograms(grads=gradients, updates=updates, params=model)
    metrics = StepMetrics(
        loss=loss,
        cross_entropy=cross_entropy,
        weight=weight,
        grad_norm=norm(of_gradients),
        learning_rate=jnp.asarray(settings.learning_rates(state.step), jnp.float32),
        squares=of_gradients,
        watched=watched,
    )
    average = state.average
    if settings.average_beta is not None:
        beta = settings.average_beta
        average = jax.tree.map(lambda old, new: beta * old + (1 - beta) * new, average, model)
    return TrainState(step=state.step + 1, model=model, optimizer=optimizer, average=average), metrics


def _gradients(
    settings: StepSettings, state: TrainState, batch: Batch, weight: Array
) -> tuple[tuple[Array, Array], Any]:
    """Loss, cross-entropy and gradients of a whole batch; each device takes its rows, and its part of the model."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), _DROPOUT), state.step)
    rows_B = jnp.arange(batch.tokens_BS.shape[0])
    layout, specs = settings.layout, settings.specs
    if layout is None:
        return _gradients_here(settings, state.model, batch, rows_B, key, weight)

    def of_part(*part: Any) -> tuple[tuple[Array, Array], Any]:
        losses, gradients = _gradients_here(settings, *part)
        return (layout.over_rows(losses[0]), layout.over_rows(losses[1])), layout.summed(gradients, specs)

    whole, rows = PartitionSpec(), layout.batch_spec
    every_device = jax.shard_map(
        of_part,
        mesh=layout.mesh,
        in_specs=(specs, rows, rows, whole, whole),
        out_specs=((whole, whole), specs),
        check_vma=False,
    )
    made: tuple[tuple[Array, Array], Any] = every_device(state.model, batch, rows_B, key, weight)
    return made


def _gradients_here(
    settings: StepSettings, model: Any, batch: Batch, rows_B: Array, key: Array, weight: Array
) -> tuple[tuple[Array, Array], Any]:
    """Loss, cross-entropy and gradients of the rows of one device, which may be taken a few at a time."""
    rows, layout = batch.tokens_BS.shape[0], settings.layout

    def loss(model: Any, part: Batch, rows_B: Array) -> tuple[Array, Array]:
        cast = settings.precision.for_computing(model)
        cast = cast if layout is None else layout.parts(cast, settings.specs)
        sums = loss_sums(
            with_fp8_products(cast) if settings.has_fp8 else cast,
            part,
            vocab_size=settings.vocab_size,
            blocks_documents=settings.blocks_documents,
            dropout=Dropout(key=key, rows_B=rows_B),
            z_loss=settings.z_loss,
            tensor=UNSPLIT if layout is None else layout.inside(),
        )
        return sums.loss / weight, sums.cross_entropy / weight

    value_and_gradient = jax.value_and_grad(loss, has_aux=True)
    if settings.microbatch is None or settings.microbatch == rows:
        return value_and_gradient(model, batch, rows_B)

    def add(total: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
        of_part = value_and_gradient(model, *part)
        if layout is not None:  # or a TPU's compiler would add whole gradients, and split their sum
            of_part = jax.lax.optimization_barrier(of_part)
        return jax.tree.map(jnp.add, total, of_part), None

    parts = jax.tree.map(
        lambda array: array.reshape(rows // settings.microbatch, settings.microbatch, *array.shape[1:]),
        (batch, rows_B),
    )
    nothing = ((jnp.zeros(()), jnp.zeros(())), jax.tree.map(jnp.zeros_like, model))
    total, _ = jax.lax.scan(add, nothing, parts)
    whole: tuple[tuple[Array, Array], Any] = total
    return whole
