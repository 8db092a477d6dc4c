"""A Hugging Face model's weights as ours.

In: an opened folder, the config of the family, and how many tokens the model shall know. Out: the tree of the family
with numpy arrays. Names and shapes are checked against the headers before anything big is read; then tensors are read
one at a time.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import RefusedError, UserError
from ponente.models.families import hf_differences
from ponente.models.hf_folder import HfModelFolder
from ponente.models.huggingface import HfTensor, HfWeight, hf_tensors, import_weights
from ponente.models.lm import LmConfig

_BUFFERS = re.compile(r"\.rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$")  # computed, not learned
_HEAD, _EMBEDDINGS = "w_head_DV", "embed_VD"
_NAMED_IN_ERRORS = 8
_PIECE_ROWS = 4096

logger = logging.getLogger(__name__)


def load_hf_weights(
    folder: HfModelFolder,
    config: LmConfig,
    vocab_size: int,
    dtype: Any = np.float32,
    *,
    extra_rows: Literal["refuse", "cut"] = "refuse",
) -> Any:
    """The model's arrays.

    Args:
        vocab_size: rows of the embeddings and the head. Rows beyond those of the file are the mean of those of the
            file: the logit of such a token is the mean of all others, so it never is the greatest, and it takes no more
            probability than a token does on average. (Zeros would win wherever all logits are below zero, as GPT-2's.)
        dtype: of the arrays; None: as the file has it.
        extra_rows: what is done with rows of the file beyond `vocab_size`.
    """
    parameters, table = config.parameters(vocab_size), config.hf_weights()
    tensors = hf_tensors(parameters, table)
    stored_name = _stored_names(folder, tensors)
    head = stored_name(table[_HEAD].name) if _is_tied(parameters, table) else None
    _check_names(folder, config, {stored_name(tensor.name) for tensor in tensors}, head)
    by_name = {tensor.name: tensor for tensor in tensors}
    for tensor in tensors:
        _check_shape(folder, stored_name(tensor.name), tensor, extra_rows)
    if head is not None and head in folder.tensors:
        _check_tied(folder, head, stored_name(table[_EMBEDDINGS].name))

    def read(name: str) -> NDArray[Any]:
        return _with_vocabulary(folder, stored_name(name), by_name[name])

    return import_weights(parameters, table, read, dtype)


def _stored_names(folder: HfModelFolder, tensors: list[HfTensor]) -> Callable[[str], str]:
    """How the file calls a tensor: a model saved without its head lacks the first part of each name, as GPT-2 does."""
    first = tensors[0].name.partition(".")[0] + "."
    if any(name.startswith(first) for name in folder.names):
        return lambda name: name
    return lambda name: name.removeprefix(first)


def _is_tied(parameters: Any, table: Mapping[str, HfWeight]) -> bool:
    """Whether the model has one array for its embeddings and its head."""
    return getattr(parameters, _HEAD, None) is None and {_HEAD, _EMBEDDINGS} <= table.keys()


def _check_names(folder: HfModelFolder, config: LmConfig, needed: set[str], tied_head: str | None) -> None:
    found = set(folder.names)
    if missing := sorted(needed - found):
        whose, remedy = _whose(
            folder, config, "Fetch the model again, or take the config.json that belongs to the weights"
        )
        raise UserError(
            f"found {folder.place} without {_some(missing)}; needed all {len(needed)} tensors of {whose}. {remedy}."
        )
    if unknown := sorted(name for name in found - needed - {tied_head} if not _BUFFERS.search(name)):
        whose, remedy = _whose(folder, config, "Take the config.json that belongs to the weights, or another model")
        raise RefusedError(
            f"found {folder.place} with {_some(unknown)}; needed no others than those of {whose}, for its logits would "
            f"be wrong without them. {remedy}."
        )


def _whose(folder: HfModelFolder, config: LmConfig, remedy: str) -> tuple[str, str]:
    """Which model asks for tensors that are not those of the folder, and what to do then.

    Args:
        remedy: where it is the folder's own.
    """
    if others := hf_differences(folder.config, config):
        return (
            f"the model that is asked for, which is not the one of its config.json ({_some(others)})",
            "Take that with use_hf_model_config: true, or change model",
        )
    return "the model of its config.json", remedy


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_IN_ERRORS
    return ", ".join(names[:_NAMED_IN_ERRORS]) + (f" and {more} more" if more > 0 else "")


def _check_shape(folder: HfModelFolder, name: str, tensor: HfTensor, extra_rows: Literal["refuse", "cut"]) -> None:
    found, needed = list(folder.tensors[name].shape), list(tensor.shape)
    dimension = tensor.vocab_dimension
    if dimension is not None and len(found) == len(needed):
        if found[dimension] > needed[dimension] and extra_rows == "refuse":
            raise UserError(
                f"found {name} of {folder.place} with {found[dimension]} tokens; needed {needed[dimension]}, which "
                "would cut some off. Use the vocabulary of the model, or ask for extra rows to be cut."
            )
        found[dimension] = needed[dimension]
    if found != needed:
        raise UserError(
            f"found {name} of shape {list(folder.tensors[name].shape)} in {folder.place}; needed {needed} by the sizes "
            "of the model. Take them from its config.json (use_hf_model_config: true), or change them under model."
        )


def _check_tied(folder: HfModelFolder, head: str, embeddings: str) -> None:
    """Refuses a head of its own where the config says that the embeddings are the head."""
    shapes = folder.tensors[head].shape, folder.tensors[embeddings].shape
    if shapes[0] != shapes[1] or not all(
        np.array_equal(folder.read_rows(head, *rows), folder.read_rows(embeddings, *rows))
        for rows in _pieces(shapes[0][0])
    ):
        raise RefusedError(
            f"found {head} in {folder.place} that differs from {embeddings}, though its config.json says "
            "tie_word_embeddings: true; needed one matrix, or a config that has two. Set tie_word_embeddings: false in "
            "its config.json if the head is meant."
        )
    logger.info("%s holds its tied embeddings twice, which are equal", folder.place)


def _pieces(rows: int) -> list[tuple[int, int]]:
    return [(start, min(start + _PIECE_ROWS, rows)) for start in range(0, rows, _PIECE_ROWS)]


def _with_vocabulary(folder: HfModelFolder, name: str, tensor: HfTensor) -> NDArray[Any]:
    """A tensor with as many tokens as the model has."""
    dimension = tensor.vocab_dimension
    array = folder.read(name)
    if dimension is None or array.shape == tensor.shape:
        return array
    have, want = array.shape[dimension], tensor.shape[dimension]
    rows = np.moveaxis(array, dimension, 0)
    if have > want:
        logger.warning("%s: the last %d of %d tokens of %s are cut off", folder.place, have - want, have, name)
        return np.moveaxis(rows[:want], 0, dimension)
    logger.info("%s: %d tokens are added to %s, as the mean of its %d", folder.place, want - have, name, have)
    grown = np.empty((want, *rows.shape[1:]), array.dtype)
    grown[:have] = rows
    sums = sum(rows[start:stop].astype(np.float64).sum(axis=0) for start, stop in _pieces(have))
    grown[have:] = sums / have
    return np.moveaxis(grown, 0, dimension)
