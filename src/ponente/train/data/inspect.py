"""A look at a batch: the rows of any step as text, with document borders, masks and padding, and the mixture's counts.

In: settings and a step. Out: lines for people. What the loss does not count is dim, or ⟦so⟧ where there is no colour.
Control characters of the data are shown, never sent to the terminal.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponente.batches.batch import Batch
from ponente.batches.stream import BatchStream, Origin
from ponente.batches.training import evaluation_stream, held_out_stream
from ponente.config.errors import RefusedError
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer
from ponente.train.data.caches import OpenData, open_data
from ponente.train.data.settings import DataSettings
from ponente.train.data.table import counted, table

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is shown, and how."""

    rows: int = 3
    tokens: int = 512  # of a row; 0 for all
    dataset: str | None = None  # only rows of this one
    split: Literal["train", "validation"] = "train"
    has_color: bool = False

    def __post_init__(self) -> None:
        if self.rows < 0 or self.tokens < 0:
            raise RefusedError(
                f"found --rows {self.rows} --tokens {self.tokens}; needed 0 or more. 0 tokens shows all."
            )

    def dim(self, text: str) -> str:
        return f"\x1b[2;31m{text}\x1b[0m" if self.has_color else f"⟦{text}⟧"

    def border(self, text: str) -> str:
        return f"\x1b[36m{text}\x1b[0m" if self.has_color else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.has_color else text


def inspect(settings: DataSettings, step: int, look: Look) -> Iterator[str]:
    """Shows the batch of a step."""
    settings.check()
    opened = open_data(settings.data)
    stream = settings.training_data(opened).stream if look.split == "train" else _validation(settings, opened, look)
    origin = stream.origin(step)
    count, shape = len(origin.dataset), stream.shape
    apart = "" if shape.blocks_documents else ", documents not held apart"
    first = stream.schedule.first_example(step)
    yield look.bold(
        f"step {step:,}: {counted(count, 'row')} of {shape.length:,} tokens, from example {first:,} on{apart}"
    )
    if look.split == "train" and step >= (steps := settings.trainer.steps(stream)):
        yield f"the run ends before, after {counted(steps, 'step')}"
    yield from _counts(stream, step, origin)
    shown = _shown_rows(stream, origin, look)
    if not len(shown) and look.rows:
        yield f"no row of the step is of {look.dataset}"
    tokenizer = load_tokenizer(settings.data.tokenizer, vocab_size=settings.data.vocab_size, engine="tokenizers")
    batch = stream.batch(step, rows=shown)
    for place, row in enumerate(shown.tolist()):
        yield ""
        yield from _Row(stream, origin, batch, place, row).lines(tokenizer, look)


def _validation(settings: DataSettings, opened: OpenData, look: Look) -> BatchStream:
    """The rows of a validation set, or those held out of a train split."""
    held_out = list(settings.data.num_validation_sequences or {})
    names = [*opened.validation, *(name for name in held_out if name not in opened.validation)]
    name = look.dataset or (names[0] if names else None)
    if name not in names:
        raise RefusedError(
            f"found --split validation of {name or 'a config without any'}; needed one of the datasets that have "
            f"validation rows: {', '.join(names) or 'none'}. Give --dataset, or hold rows out."
        )
    size, shape = settings.schedule().size(0), settings.shape()
    if name in opened.validation:
        return evaluation_stream(name, opened.validation[name], size, shape)
    return held_out_stream(settings.data, name, opened.train[name], size, shape, settings.seed)


def _shown_rows(stream: BatchStream, origin: Origin, look: Look) -> NDArray[np.int64]:
    if look.dataset is None or look.split == "validation":
        return np.arange(min(look.rows, len(origin.dataset)))
    names = [dataset.name for dataset in stream.datasets]
    if look.dataset not in names:
        raise RefusedError(
            f"found --dataset {look.dataset}; needed one that is trained on: {', '.join(names)}. Name one."
        )
    return np.flatnonzero(origin.dataset == names.index(look.dataset))[: look.rows]


def _counts(stream: BatchStream, step: int, origin: Origin) -> Iterator[str]:
    """Where the rows of the step, and all rows up to it, come from."""
    before = stream.counts(step + 1)
    rows = [("dataset", "rows", "rows so far", "epochs so far", "order")]
    for number, dataset in enumerate(stream.datasets):
        here, so_far = int((origin.dataset == number).sum()), int(before[number])
        rows.append((dataset.name, f"{here:,}", f"{so_far:,}", f"{so_far / dataset.length:.2f}", str(dataset.order)))
    yield from table(rows)


@dataclass(frozen=True)
class _Row:
    """One row of a batch, of which perhaps only some rows were read."""

    stream: BatchStream
    origin: Origin
    batch: Batch
    place: int  # in what was read
    row: int  # in the step

    def lines(self, tokenizer: Tokenizer, look: Look) -> Iterator[str]:
        number = int(self.origin.dataset[self.row])
        if number < 0:
            yield look.bold(f"row {self.row}: padding, for the data are exhausted")
            return
        dataset, position = self.stream.datasets[number], int(self.origin.position[self.row])
        (row_number,) = dataset.row_numbers(np.array([position])).tolist()
        length = self.stream.shape.length
        predicted = int((self.batch.loss_weights_BS[self.place] > 0).sum())
        yield look.bold(
            f"row {self.row}: {dataset.name}, its row {row_number:,}, epoch {position // dataset.length}, "
            f"{predicted:,} of {length:,} predictions count"
        )
        (start,), (stop,) = (part.tolist() for part in dataset.spans(np.array([position])))
        yield from self._documents(min(stop - start, length), dataset.rows.crosses_documents, tokenizer, look)

    def _documents(self, known: int, crosses: bool, tokenizer: Tokenizer, look: Look) -> Iterator[str]:
        starts = np.flatnonzero(np.diff(self.batch.segment_ids_BS[self.place], prepend=-1))
        lengths = np.diff(starts, append=self.stream.shape.length)
        is_counted = np.concatenate([[crosses], self.batch.loss_weights_BS[self.place, :-1] > 0])
        room = look.tokens or self.stream.shape.length
        for document, (first, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            if first >= known:
                yield look.border(f"── {length:,} tokens of padding")
                return
            length = min(length, known - first)
            yield look.border(f"── document {document + 1} of the row, {counted(length, 'token')}")
            here = slice(first, first + min(length, max(0, room - first)))
            if here.stop > here.start:
                yield _text(self.batch.tokens_BS[self.place, here], is_counted[here], tokenizer, look)
            if first + length > room:
                rest = known - max(room, first)
                yield look.border(f"── … {rest:,} more tokens of the row (--tokens 0 shows all)")
                return


def _text(tokens: NDArray[np.int32], is_counted: NDArray[np.bool_], tokenizer: Tokenizer, look: Look) -> str:
    edges = [0, *(np.flatnonzero(np.diff(is_counted)) + 1).tolist(), len(tokens)]
    parts = []
    for start, stop in pairwise(edges):
        text = _UNSEEN.sub(_visible, tokenizer.decode(tokens[start:stop].tolist()))
        parts.append(text if is_counted[start] else look.dim(text))
    return "".join(parts)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else f"\\u{code:04x}" if code > 255 else f"\\x{code:02x}"
