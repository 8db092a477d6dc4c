"""A look at a batch: the rows of any step as text, with document borders, masks and padding, and the mixture's counts.

In: settings and a step. Out: lines for people. What the loss does not count is dim, or ⟦so⟧ where there is no colour.
Control characters of the data are shown, never sent to the terminal.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ponente.batches.batch import Batch
from ponente.batches.stream import BatchStream, Origin
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer
from ponente.train.data.caches import open_data
from ponente.train.data.settings import DataSettings
from ponente.train.data.table import table

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Look:
    """How rows are shown."""

    rows: int = 3
    tokens: int = 512  # of a row; 0 for all
    has_color: bool = False

    def dim(self, text: str) -> str:
        return f"\x1b[2;31m{text}\x1b[0m" if self.has_color else f"⟦{text}⟧"

    def border(self, text: str) -> str:
        return f"\x1b[36m{text}\x1b[0m" if self.has_color else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.has_color else text


def inspect(settings: DataSettings, step: int, look: Look) -> Iterator[str]:
    """Shows the batch of a step."""
    opened = open_data(settings.data)
    shape = settings.shape()
    stream = settings.training_data(opened).stream
    origin = stream.origin(step)
    first = stream.schedule.first_example(step)
    count = len(origin.dataset)
    yield look.bold(f"step {step:,}: {count:,} rows of {shape.length:,} tokens, examples from {first:,} on")
    yield from _counts(stream, step, origin)
    tokenizer = load_tokenizer(settings.data.tokenizer, vocab_size=settings.data.vocab_size, engine="tokenizers")
    shown = np.arange(min(look.rows, count))
    batch = stream.batch(step, rows=shown)
    for row in shown.tolist():
        yield ""
        yield from _row(stream, origin, batch, row, tokenizer, look)


def _counts(stream: BatchStream, step: int, origin: Origin) -> Iterator[str]:
    """Where the rows of the step, and all rows up to it, come from."""
    before = stream.mixture.counts(stream.schedule.first_example(step + 1))
    rows = [("dataset", "rows", "rows so far", "epochs so far", "order")]
    for number, dataset in enumerate(stream.datasets):
        here, so_far = int((origin.dataset == number).sum()), int(before[number])
        order = type(dataset.order).__name__
        rows.append((dataset.name, f"{here:,}", f"{so_far:,}", f"{so_far / dataset.length:.2f}", order))
    yield from table(rows)


def _row(
    stream: BatchStream, origin: Origin, batch: Batch, row: int, tokenizer: Tokenizer, look: Look
) -> Iterator[str]:
    number = int(origin.dataset[row])
    if number < 0:
        yield look.bold(f"row {row}: padding, for the data are exhausted")
        return
    dataset, position = stream.datasets[number], int(origin.position[row])
    (row_number,) = dataset.row_numbers(np.array([position])).tolist()
    counted = int((batch.loss_weights_BS[row] > 0).sum())
    yield look.bold(
        f"row {row}: {dataset.name}, its row {row_number:,}, epoch {position // dataset.length}, "
        f"{counted:,} of {stream.shape.length:,} predictions count"
    )
    (start,), (stop,) = dataset.rows.spans(np.array([row_number]))
    known = min(int(stop - start), stream.shape.length)
    room = look.tokens or stream.shape.length
    for document, (first, length) in enumerate(
        zip(batch.document_starts_BM[row].tolist(), batch.document_lengths_BM[row].tolist(), strict=True)
    ):
        if first < 0:
            break
        if first >= known:
            yield look.border(f"── {length:,} tokens of padding")
            break
        length = min(length, known - first)
        yield look.border(f"── document {document + 1} of the row, {length:,} tokens")
        here = slice(first, first + min(length, max(0, room - first)))
        if here.stop > here.start:
            yield _text(batch.tokens_BS[row, here], _is_counted(batch, row)[here], tokenizer, look)
        if first + length > room:
            yield look.border(f"── … {known - max(room, first):,} more tokens of the row (--tokens 0 shows all)")
            break


def _is_counted(batch: Batch, row: int) -> NDArray[np.bool_]:
    """Whether the prediction of each token of a row counts; the first is predicted in another row, if at all."""
    return np.concatenate([[False], batch.loss_weights_BS[row, :-1] > 0])


def _text(tokens: NDArray[np.int32], counted: NDArray[np.bool_], tokenizer: Tokenizer, look: Look) -> str:
    edges = [0, *(np.flatnonzero(np.diff(counted)) + 1).tolist(), len(tokens)]
    parts = []
    for start, stop in pairwise(edges):
        text = _CONTROLS.sub(_shown, tokenizer.decode(tokens[start:stop].tolist()))
        parts.append(text if counted[start] else look.dim(text))
    return "".join(parts)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else f"\\x{code:02x}"
