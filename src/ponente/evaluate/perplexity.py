"""How well a model predicts validation sets: loss, perplexity and bits per byte, of each set, tag, and all together.

In: streams of batches with names and tags. Out: metrics under the names that dashboards know. Sums over tokens are
divided once, so batch sizes and padding do not matter.
"""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from ponente.batches.batch import Batch
from ponente.batches.loader import Loader
from ponente.batches.stream import BatchStream
from ponente.batches.training import evaluation_stream, held_out_stream
from ponente.ops.loss import entropy_sum
from ponente.ops.mesh import UNSPLIT, Layout, Tensor
from ponente.tokens.tokenizer import Tokenizer
from ponente.train.mesh import batch_sharding, placed
from ponente.train.objective import loss_sums, rows_together, tokens_of
from ponente.train.precision import Precision
from ponente.train.setup import EvaluationSetup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """One validation set: finite batches, and the tags that it counts under."""

    name: str
    tags: tuple[str, ...]
    stream: BatchStream


class Sums(NamedTuple):
    """Sums over the tokens that count, each times its weight."""

    loss: Any
    weight: Any
    bytes: Any
    entropy: Any

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]
        return Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is evaluated, and how."""

    sets: tuple[EvaluationSet, ...]
    precision: Precision
    vocab_size: int
    bytes_V: NDArray[np.float32] | None  # how many bytes each id stands for
    max_batches: int | None = None  # of each set
    has_entropy: bool = False
    layout: Layout | None = None  # None: one device
    specs: Any = None  # with a layout, how each parameter is split
    widest: Callable[[str], Callable[[int, int], int] | None] = lambda _: None  # `EvaluationSetup.widest`
    _numbers: Iterator[int] = field(default_factory=itertools.count)  # of the passes over sets so far

    def __call__(self, model: Any) -> dict[str, float]:
        """The metrics of a model: `eval/loss`, `eval/<tag>/loss` and so on."""
        began = time.monotonic()
        if self.layout is not None:
            model = placed(model, jax.tree.map(self.layout.sharding, self.specs))
        weights = jax.jit(self.precision.for_computing)(model)
        sums = {one.name: self._sums(one, weights) for one in self.sets}
        metrics = self._metrics({name: Sums(*map(float, found)) for name, found in sums.items()})
        metrics["eval/total_time"] = time.monotonic() - began
        return metrics

    def _sums(self, one: EvaluationSet, model: Any) -> Sums:
        total: Sums = self._everywhere(Sums(*(jnp.zeros(()) for _ in Sums._fields)))
        steps = one.stream.steps
        stop = steps if self.max_batches is None else min(self.max_batches, steps or self.max_batches)
        parts = 1 if self.layout is None else self.layout.row_parts
        bytes_V = None if self.bytes_V is None else self._everywhere(jnp.asarray(self.bytes_V))
        blocks_documents = one.stream.shape.blocks_documents
        together = rows_together(model.config, self.precision.compute, None, parts, blocks_documents=blocks_documents)
        widest = self.widest(f"{one.name}, pass {next(self._numbers)}")
        sharding = batch_sharding(self.layout)
        with Loader(one.stream, sharding, stop=stop, rows_together=together, widest=widest) as loader:
            for _, batch in loader:
                total = self._compiled(total, model, batch, bytes_V, blocks_documents)
        return total

    def _everywhere(self, tree: Any) -> Any:
        """The same on all devices of the layout."""
        if (layout := self.layout) is None:
            return tree
        return placed(tree, jax.tree.map(lambda _: layout.sharding(PartitionSpec()), tree))

    @cached_property
    def _compiled(self) -> Any:
        """`_add`, compiled once for all evaluations of a run."""
        return jax.jit(lambda *arguments: self._add(*arguments), static_argnums=4, donate_argnums=0)

    def _add(self, total: Sums, model: Any, batch: Batch, bytes_V: Array | None, blocks_documents: bool) -> Sums:
        if (layout := self.layout) is None:
            return total + self._of_rows(model, batch, bytes_V, blocks_documents)

        def of_part(model: Any, batch: Batch, bytes_V: Array | None) -> Sums:
            sums = self._of_rows(layout.parts(model, self.specs), batch, bytes_V, blocks_documents, layout.inside())
            return Sums(*map(layout.over_rows, sums))

        whole = PartitionSpec()
        specs = (self.specs, layout.batch_spec, whole)
        every_device = jax.shard_map(of_part, mesh=layout.mesh, in_specs=specs, out_specs=whole, check_vma=False)
        return total + every_device(model, batch, bytes_V)

    def _of_rows(
        self, model: Any, batch: Batch, bytes_V: Array | None, blocks_documents: bool, tensor: Tensor = UNSPLIT
    ) -> Sums:
        """Of the rows of one device."""
        sums = loss_sums(model, batch, vocab_size=self.vocab_size, blocks_documents=blocks_documents, tensor=tensor)
        count = jnp.zeros(())
        if bytes_V is not None:
            count = jnp.sum(bytes_V[batch.targets_BS] * batch.loss_weights_BS)
        entropy = jnp.zeros(())
        if self.has_entropy:
            hidden = model.hidden(replace(tokens_of(batch, blocks_documents=blocks_documents), tensor=tensor))
            entropy = entropy_sum(
                hidden.reshape(-1, hidden.shape[-1]),
                model.head_DV(),
                batch.loss_weights_BS.reshape(-1),
                self.vocab_size,
                tensor.of("vocab"),
            )
        return Sums(sums.cross_entropy, sums.weight, count, entropy)

    def _metrics(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        metrics = dict(self._of("eval", list(sums.values())))
        groups: dict[str, list[str]] = {}
        for one in self.sets:
            for tag in tags_of(one):
                groups.setdefault(tag, []).append(one.name)
        for tag, names in groups.items():
            metrics |= dict(self._of(f"eval/{tag}", [sums[name] for name in names]))
        return metrics

    def _of(self, prefix: str, parts: Sequence[Sums]) -> Iterator[tuple[str, float]]:
        """The metrics of some sets: all their tokens together, and, where there are several, the mean of the sets."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        yield f"{prefix}/loss", _ratio(total.loss, total.weight)
        yield f"{prefix}/perplexity", _exp(_ratio(total.loss, total.weight))
        if total.bytes:
            yield f"{prefix}/bpb", total.loss / math.log(2) / total.bytes
        if self.has_entropy:
            yield f"{prefix}/entropy", _ratio(total.entropy, total.weight)
        if prefix == "eval" or len(parts) > 1:
            yield f"{prefix}/macro_loss", sum(_ratio(part.loss, part.weight) for part in parts) / len(parts)
            if all(part.bytes for part in parts):
                yield (
                    f"{prefix}/macro_bpb",
                    sum(part.loss / math.log(2) / part.bytes for part in parts) / len(parts),
                )


def tags_of(one: EvaluationSet) -> list[str]:
    """The tags of a set: its name, what the config says, and what stands before a slash in either."""
    tags: dict[str, None] = {}
    for tag in (one.name, *one.tags):
        parts = tag.split("/")
        for depth in range(1, len(parts) + 1):
            tags["/".join(parts[:depth])] = None
    return list(tags)


def evaluation_of(setup: EvaluationSetup, *, on_train: bool = False) -> Evaluation | None:
    """The validation sets of a config; None where it has none.

    Args:
        on_train: also evaluates what is trained on, under the tag `train`.
    """
    config, trainer = setup.config, setup.config.trainer
    rows = trainer.per_device_eval_parallelism
    parts = 1 if setup.layout is None else setup.layout.row_parts
    size = -(-config.batches.schedule().size(0) // parts) * parts if rows == -1 else rows * parts
    streams: dict[str, BatchStream] = {
        name: evaluation_stream(name, source, size, setup.shape) for name, source in setup.opened.validation.items()
    }
    for name in config.data.num_validation_sequences or {}:
        if name not in streams:
            source = setup.opened.train[name]
            streams[name] = held_out_stream(config.data, name, source, size, setup.shape, config.batches.seed)
    sets = [
        EvaluationSet(name=name, tags=config.data.components[name].tags, stream=stream)
        for name, stream in streams.items()
    ]
    if on_train:
        sets += [
            EvaluationSet(name=f"train/{name}", tags=(), stream=evaluation_stream(name, source, size, setup.shape))
            for name, source in setup.opened.train.items()
        ]
    if not sets:
        return None
    return Evaluation(
        sets=tuple(sets),
        precision=trainer.precision,
        vocab_size=setup.vocab_size,
        bytes_V=id_lengths(setup.tokenizer, setup.vocab_size),
        max_batches=trainer.max_eval_batches,
        has_entropy=config.log_entropy,
        layout=setup.layout,
        specs=setup.specs,
        widest=setup.widest,
    )


def id_lengths(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.float32] | None:
    """How many bytes of text each id stands for; special tokens stand for none. None where ids are not of text."""
    found = tokenizer.id_bytes
    if found is None:
        return None
    lengths = np.zeros(vocab_size, np.float32)
    known = np.diff(found[1])
    lengths[: len(known)] = known
    lengths[sorted(tokenizer.special_ids)] = 0
    return lengths


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
