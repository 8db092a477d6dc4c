"""What a run would take of some hardware that need not be there: memory, hours, money.

In: a config, and the name of hardware. Out: an `Estimate`. Parameters, operations and the state of each device follow
from shapes and the mesh exactly; what a step needs while it runs is reckoned from what its layers keep.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ponente.models.parameters import LAYERS, count, is_parameter
from ponente.models.stack import kept_numbers
from ponente.ops.platform import compiling_for
from ponente.tokens.passthrough import PASSTHROUGH
from ponente.train.beginning import abstract_state_of
from ponente.train.compiling import lower_step
from ponente.train.config import TrainConfig
from ponente.train.devices import prepare_devices
from ponente.train.fitting import GIB, Need, bytes_of_part
from ponente.train.hardware import Hardware, hardware, hardware_here
from ponente.train.mesh import check_rows
from ponente.train.offload import is_on_host
from ponente.train.setup import ModelSetup, set_up_model
from ponente.train.topology import devices_of, has_compiler

_LOSS_LOGITS = 1 << 28  # of a chunk of the loss, in float32 and once more in 16 bits
_RESERVED = 0.07  # of a device's memory: the runtime's


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device."""

    weights: int
    optimizer: int
    host: int  # of what the optimizer keeps there
    gradients: int
    kept: int  # of layers, until their backward pass
    working: int  # weights in the type that is computed with, and whole ones of a layer; its run; a chunk of the loss

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.kept + self.working


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run takes."""

    parameters: int
    flops_per_token: float
    tokens_a_step: int
    steps: int | None  # None: it depends on the data
    tokens: int  # of all steps, or a billion
    mesh: dict[str, int]
    rows_at_once: int
    memory: Memory
    hardware: Hardware
    mfu: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= _room(self.hardware)

    @property
    def tokens_a_second(self) -> float | None:
        """None: the peak is not known."""
        hardware = self.hardware
        return None if hardware.peak is None else self.mfu * hardware.peak * hardware.devices / self.flops_per_token

    def lines(self) -> Iterator[str]:
        """The estimate for people."""
        hardware, memory = self.hardware, self.memory
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.items() if size > 1) or "one device"
        yield f"parameters          {self.parameters:,}"
        yield f"operations a token  {self.flops_per_token:.4g}, forward and backward"
        yield f"a step              {self.tokens_a_step:,} tokens"
        yield f"hardware            {hardware.name}: {hardware.devices} x {hardware.memory / GIB:.0f} GiB; mesh: {axes}"
        rows = f"{self.rows_at_once} row{'s' * (self.rows_at_once > 1)} at once"
        fewer = " (trainer.per_device_parallelism: auto takes as many rows as do)" * (self.rows_at_once > 1)
        yield f"memory of a device  {memory.total / GIB:.1f} GiB with {rows}: " + (
            "fits" if self.fits else f"does NOT fit{fewer}"
        )
        for name in ("weights", "optimizer", "gradients", "kept", "working"):
            yield f"  {name:<18}{getattr(memory, name) / GIB:.2f}"
        if memory.host:
            yield f"memory of the host  {memory.host / GIB:.2f} GiB for each device: trainer.offload_optimizer"
        if (speed := self.tokens_a_second) is not None:
            yield f"speed               {speed:,.0f} tokens a second, at {self.mfu:.0%} of the peak (--mfu)"
            hours = self.tokens / speed / 3600
            of_devices = hours * hardware.devices
            what = "a billion tokens    " if self.steps is None else f"{self.steps:,} steps".ljust(20)
            yield f"{what}{self.tokens:,} tokens, {hours:,.1f} hours, {of_devices:,.0f} hours of devices"
            if hardware.price is not None:
                cost = of_devices * hardware.price
                yield f"cost                about ${cost:,.0f}, at ${hardware.price:.2f} an hour of each (--price)"


def estimate_lines(
    config: TrainConfig, name: str, *, mfu: float | None = None, price: float | None = None
) -> Iterator[str]:
    """The estimate for people, on hardware of that name; without one on these devices, for which a step is compiled."""
    if not name:
        prepare_devices(config.trainer)  # which says how much of their memory a run gets
    config = _without_tokenizer(config)
    machine = hardware(name) if name else hardware_here()
    found = estimate(config, machine if price is None else replace(machine, price=price), mfu=mfu)
    yield from found.lines()
    trainer = replace(config.trainer, per_device_parallelism=found.rows_at_once)
    given = replace(config, trainer=trainer)
    if not name:
        yield f"compiled here       a step needs {Need.of(lower_step(given).compile())}"
    elif machine.topology is not None and machine.devices > 1:
        yield f"compiled for it     {_compiled_for(given, machine)}"


def _compiled_for(config: TrainConfig, hardware: Hardware) -> str:
    """What the compiler of TPUs, which need not be here, says of a step."""
    if not has_compiler():
        return "not tried: pip install 'ponente[tpu]' has the compiler of TPUs, which needs none"
    try:
        return f"a step needs {need_on(config, hardware)}"
    except jax.errors.JaxRuntimeError as error:  # no such slice, or a step that has no room on it
        return f"refused by the compiler of TPUs: {str(error).splitlines()[0]}"


def need_on(config: TrainConfig, hardware: Hardware) -> Need:
    """What a step takes of a slice of TPUs, which need not be here, by the account of their compiler."""
    with compiling_for("tpu"):
        return Need.of(lower_step(config, devices_of(hardware)).compile())


def estimate(config: TrainConfig, hardware: Hardware, *, mfu: float | None = None) -> Estimate:
    """What the run of a config takes; neither the hardware nor its data need be there.

    Args:
        mfu: the share of the peak that is reached; None: what is usual for the model.
    """
    config = _without_tokenizer(config)
    config.check()
    model = set_up_model(config, None if hardware.is_here else hardware.devices)
    config, trainer = model.config, model.config.trainer
    check_rows(model.layout, trainer.batch_sizes, trainer.microbatch)
    size, length = max(trainer.batch_sizes), config.shape().length
    here = size // model.row_parts
    memory = {rows: _memory(model, rows, is_in_parts=rows < here) for rows in _rows_at_once(model, here)}
    rows = max((rows for rows, one in memory.items() if one.total <= _room(hardware)), default=min(memory))
    schedule = config.batches.schedule()
    steps: int | None = trainer.planned_steps
    if trainer.num_train_tokens is not None:
        steps = schedule.steps_for(-(-trainer.num_train_tokens // length))
    elif trainer.num_train_epochs is not None or config.epoch:
        steps = None
    return Estimate(
        parameters=count(model.parameters),
        flops_per_token=model.model.flops_per_token(length, model.vocab_size),
        tokens_a_step=size * length,
        steps=steps,
        tokens=1_000_000_000 if steps is None else schedule.first_example(steps) * length,
        mesh={} if model.layout is None else dict(model.layout.mesh.shape),
        rows_at_once=rows,
        memory=memory[rows],
        hardware=hardware,
        mfu=config.model.usual_mfu if mfu is None else mfu,
    )


def _without_tokenizer(config: TrainConfig) -> TrainConfig:
    """The config that needs no tokenizer, where it says by itself how many ids the model knows."""
    is_said = config.data.vocab_size is not None
    return replace(config, data=replace(config.data, tokenizer=PASSTHROUGH)) if is_said else config


def _room(hardware: Hardware) -> float:
    return hardware.memory * (1.0 if hardware.is_here else 1 - _RESERVED)


def _rows_at_once(model: ModelSetup, here: int) -> list[int]:
    """Of the rows of a device, how many may be taken at once: what the config says, or any that divides them."""
    trainer = model.config.trainer
    if trainer.finds_microbatch:
        return [rows for rows in range(1, here + 1) if here % rows == 0]
    return [trainer.microbatch or here]


def _of_a_layer(parameters: Any) -> int:
    """How many weights the largest layer has: its part of what is stacked, and of what each layer has of its own."""
    leaves = jax.tree.leaves(parameters, is_leaf=is_parameter)
    stacked: int = sum(math.prod(leaf.shape[1:]) for leaf in leaves if leaf.axes[0] == LAYERS)
    apart = [part for part in vars(parameters).values() if isinstance(part, tuple)]
    return stacked + sum(max(map(count, part)) for part in apart)


def _memory(model: ModelSetup, rows: int, *, is_in_parts: bool) -> Memory:
    config, layout = model.config, model.layout
    state = abstract_state_of(model, config.optimizer.build(model.parameters, config.trainer.planned_steps))
    weights = sum(map(bytes_of_part, jax.tree.leaves(state.model)))
    extra = jax.tree.leaves((state.optimizer, state.average, state.step))
    host = sum(bytes_of_part(array) for array in extra if is_on_host(array))
    computed = jnp.dtype(config.trainer.precision.compute).itemsize
    gradient = weights if is_in_parts else weights * computed // jnp.dtype(config.trainer.precision.parameters).itemsize
    cast = 0 if computed == jnp.dtype(config.trainer.precision.parameters).itemsize else weights // 2
    tensor = 1 if layout is None else layout.tensor_parts
    made, checkpointing = model.model.activations(), model.model.gradient_checkpointing
    tokens = rows * config.shape().length
    logits = tokens * model.vocab_size
    of_layer = kept_numbers(made, checkpointing, tensor) + made.shared
    kept = model.model.cache_sizes()[0] * tokens * of_layer * computed
    one_layer = tokens * kept_numbers(made, False, tensor) * computed
    whole = _of_a_layer(model.parameters)
    return Memory(
        weights=weights,
        optimizer=sum(map(bytes_of_part, extra)) - host,
        host=host,
        gradients=gradient,
        kept=kept,
        working=cast + one_layer * 3 // 2 + 2 * whole * computed // tensor + 6 * min(_LOSS_LOGITS, logits),
    )
