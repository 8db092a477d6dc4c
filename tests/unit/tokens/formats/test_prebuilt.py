"""Rows of ids: passed on as they are, or named with what is wrong in them."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponente.tokens.formats import PrebuiltFormat
from ponente.tokens.formats.format import EncodedRows, EncoderOptions
from ponente.tokens.load import load_tokenizer

OPTIONS = EncoderOptions()
TOKENIZER = load_tokenizer("passthrough", vocab_size=100)


def encode(ids: list[Any], weights: list[Any] | None = None) -> EncodedRows:
    if weights is None:
        return PrebuiltFormat().encoder(TOKENIZER, OPTIONS)({"input_ids": ids})
    form = PrebuiltFormat(input_ids_key="tokens", loss_weights_key="w")
    return form.encoder(TOKENIZER, OPTIONS)({"tokens": ids, "w": weights})


def rows(encoded: EncodedRows, column: str = "input_ids") -> list[list[Any]]:
    values = encoded.columns[column]
    return [values[a:b].tolist() for a, b in pairwise(encoded.offsets)]


@given(st.lists(st.lists(st.integers(0, 99), max_size=8), max_size=5))
def test_ids_are_kept_as_they_are_from_lists_and_arrays(given_rows: list[list[int]]) -> None:
    kinds = (list, tuple, lambda row: np.array(row, np.int32), lambda row: np.array(row, np.uint16))
    for kind in kinds:
        encoded = encode([kind(row) for row in given_rows])
        assert rows(encoded) == given_rows
        assert encoded.columns["input_ids"].dtype == np.uint32
        assert encoded.bad == {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([1, 100, 2], r"found id 100 at position 1; needed ids of the vocabulary of passthrough, 0 to 99"),
        ([5, 6, -1], r"found id -1 at position 2"),
        ([2**40], r"found id 1099511627776 at position 0"),
        ([2**63 + 5], r"found id \d+ at position 0"),
        ([2**70], r"needed a flat list of whole numbers"),
        ([1.0, 2.5], r"float64 where token ids were needed"),
        ([True, False], r"bool where token ids were needed"),
        (["1"], r"where token ids were needed"),
        ([[1], [2]], r"2-dimensional int64"),
        ([[1], [2, 3]], r"where token ids were needed"),
        ([1, None], r"where token ids were needed"),
        (None, r"found NoneType"),
        ("12", r"found str"),
        (7, r"found int"),
    ],
)
def test_a_wrong_row_is_named_and_its_neighbours_stay(row: Any, why: str) -> None:
    encoded = encode([[1, 2], row, [3]])
    assert rows(encoded) == [[1, 2], [], [3]]
    assert list(encoded.bad) == [1]
    assert re.search(why, encoded.bad[1])


def test_weights_go_with_their_ids() -> None:
    encoded = encode([[1, 2], [], [3]], [[0.5, 1], [], np.array([2.0])])
    assert rows(encoded, "loss_weights") == [[0.5, 1.0], [], [2.0]]
    assert encoded.columns["loss_weights"].dtype == np.float32


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([1.0], "found 1 loss weights for 2 ids"),
        ([1.0, float("nan")], "found the loss weight nan at position 1"),
        ([1e300, 1.0], r"found the loss weight 1e\+300 at position 0"),
        (["a", "b"], "where loss weights were needed"),
        (None, "found NoneType where loss weights were needed"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights: Any, why: str) -> None:
    encoded = encode([[1, 2], [3, 4], [5]], [[1, 1], weights, [0]])
    assert rows(encoded) == [[1, 2], [], [5]]
    assert rows(encoded, "loss_weights") == [[1, 1], [], [0]]
    assert list(encoded.bad) == [1]
    assert re.search(why, encoded.bad[1])


def test_a_row_wrong_in_ids_and_weights_is_named_once() -> None:
    encoded = encode([[1, 500], [3]], [[1], [1]])
    assert rows(encoded) == [[], [3]]
    assert rows(encoded, "loss_weights") == [[], [1]]


def test_fields_and_columns_follow_the_keys() -> None:
    assert PrebuiltFormat().columns() == ("input_ids",)
    both = PrebuiltFormat(input_ids_key="t", loss_weights_key="w")
    assert both.columns() == ("input_ids", "loss_weights")
    assert set(both.fields()) == {"t", "w"}
    assert both.identity(TOKENIZER, OPTIONS) != PrebuiltFormat().identity(TOKENIZER, OPTIONS)
