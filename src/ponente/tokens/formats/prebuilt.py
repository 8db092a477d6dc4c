"""Rows that are token ids already, checked and passed on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponente.tokens.formats.format import INPUT_IDS, LOSS_WEIGHTS, EncodedRows, Encoder, EncoderOptions, TokenFormat
from ponente.tokens.formats.rows import offsets_of, only_rows
from ponente.tokens.tokenizer import Tokenizer

_NO_IDS = np.zeros(0, np.int64)
_NO_WEIGHTS = np.zeros(0, np.float32)


@TokenFormat.register_subclass("prebuilt")
@dataclass(frozen=True, kw_only=True)
class PrebuiltFormat(TokenFormat):
    """A field of ids, kept as they are (no EOS is added), and if named, a field of loss weights."""

    input_ids_key: str = "input_ids"
    loss_weights_key: str | None = None

    def fields(self) -> dict[str, Any]:
        weights = {} if self.loss_weights_key is None else {self.loss_weights_key: list[float]}
        return {self.input_ids_key: list[int], **weights}

    def columns(self) -> tuple[str, ...]:
        return (INPUT_IDS,) if self.loss_weights_key is None else (INPUT_IDS, LOSS_WEIGHTS)

    def encoder(self, tokenizer: Tokenizer, options: EncoderOptions) -> Encoder:
        size, name = tokenizer.vocab_size, tokenizer.name

        def encode(values: Mapping[str, list[Any]]) -> EncodedRows:
            bad: dict[int, str] = {}
            rows = [_ids(row, number, bad) for number, row in enumerate(values[self.input_ids_key])]
            weights: list[NDArray[np.float32]] = []
            if self.loss_weights_key is not None:
                pairs = zip(rows, values[self.loss_weights_key], strict=True)
                weights = [_weights(row, own, number, bad) for number, (row, own) in enumerate(pairs)]
            ids = np.concatenate([_NO_IDS, *rows])
            offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
            for at in np.flatnonzero((ids < 0) | (ids >= size)):
                number = int(np.searchsorted(offsets, at, side="right")) - 1
                bad.setdefault(number, _outside(int(ids[at]), int(at - offsets[number]), name, size))
            kept = np.array([number not in bad for number in range(len(rows))], bool)
            columns: dict[str, NDArray[Any]] = {INPUT_IDS: only_rows(ids.astype(np.uint32), offsets, kept)[0]}
            if self.loss_weights_key is not None:
                fitting = [own for own, keep in zip(weights, kept, strict=True) if keep]
                columns[LOSS_WEIGHTS] = np.concatenate([_NO_WEIGHTS, *fitting])
            lengths = np.where(kept, np.diff(offsets), 0)
            return EncodedRows(columns=columns, offsets=offsets_of(lengths), bad=bad)

        return encode

    def identity(self, tokenizer: Tokenizer, options: EncoderOptions) -> dict[str, Any]:
        return {"type": "prebuilt", "input_ids_key": self.input_ids_key, "loss_weights_key": self.loss_weights_key}


def _outside(found: int, position: int, name: str, size: int) -> str:
    return (
        f"found id {found} at position {position}; needed ids of the vocabulary of {name}, 0 to {size - 1}; name the "
        "tokenizer that made the ids (or, with passthrough, its vocab_size), or mend the row"
    )


def _ids(row: Any, number: int, bad: dict[int, str]) -> NDArray[np.int64]:
    """The ids of one row as int64; of a row that has none (and is then named in `bad`), an empty array."""
    array = _array(row)
    if array is not None and array.size == 0 and array.ndim == 1:
        return _NO_IDS
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        what = type(row).__name__ if array is None else f"{array.ndim}-dimensional {array.dtype}"
        bad[number] = f"found {what} where token ids were needed; needed a flat list of whole numbers; mend the row"
        return _NO_IDS
    if array.dtype == np.uint64:  # ids that int64 cannot hold stay outside any vocabulary
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)


def _weights(row: NDArray[np.int64], value: Any, number: int, bad: dict[int, str]) -> NDArray[np.float32]:
    if number in bad:
        return _NO_WEIGHTS
    array = _array(value)
    if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iufb"):
        bad[number] = f"found {type(value).__name__} where loss weights were needed; needed one number for each id"
    elif len(array) != len(row):
        bad[number] = f"found {len(array)} loss weights for {len(row)} ids; needed one for each id; mend the row"
    else:
        with np.errstate(over="ignore"):
            weights = array.astype(np.float32)
        if np.isfinite(weights).all():
            return weights
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        bad[number] = f"found the loss weight {array[at]} at position {at}; needed finite numbers; mend the row"
    return _NO_WEIGHTS


def _array(value: Any) -> NDArray[Any] | None:
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # ragged, or no numbers
        return None
