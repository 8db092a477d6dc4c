"""A model of ours as a Hugging Face folder, which transformers and whatever else reads those can load.

In: a tree of arrays, its config, and what belongs beside it: the tokenizer's files, special ids, a card. Out: the
folder, published whole. The host holds one tensor (of one layer) at a time beside the model.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import fsspec
import jax.numpy as jnp
import msgspec
import numpy as np

from ponente.config.errors import RefusedError, UserError
from ponente.models.hf_card import ModelCard
from ponente.models.hf_folder import CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS
from ponente.models.huggingface import VOCAB, arrays_by_name, export_tensor, hf_tensors
from ponente.models.lm import LmConfig
from ponente.models.safetensors_file import TensorToWrite, dtype_name, write_tensors
from ponente.store.paths import absolute, join, protocol_of
from ponente.store.remote import PROTOCOLS
from ponente.store.volume import Volume, publishing_folder, volume_of

CARD = "README.md"
MAX_SHARD_BYTES = 5 << 30

logger = logging.getLogger(__name__)


def save_hf_model(
    place: str,
    model: Any,
    config: LmConfig,
    *,
    vocab_size: int,
    tokenizer_files: Mapping[str, bytes],
    card: ModelCard | str,
    dtype: Any = None,
    bos_id: int | None = None,
    eos_ids: Sequence[int] = (),
    pad_id: int | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> str:
    """Writes the model's folder to `place`, a local path or URL where no model is yet; gives its absolute form.

    Nothing is seen at `place` before all is written, if that is a volume of ours; in other stores config.json, without
    which it is no model, comes last.

    Args:
        model: the family's tree of jax or numpy arrays.
        vocab_size: of the tokenizer; rows of the model beyond it, which pad it, are left out.
        tokenizer_files: by name, as they are.
        dtype: to save in; None: that of each array.
        eos_ids: each of which ends a text.
        max_shard_bytes: of tensors in one file.
    """
    target = absolute(place)
    if has_hf_model(target):
        raise RefusedError(
            f"found {target} there already; needed a free place to export to. Remove it, or choose another."
        )
    stored = config.to_hf(vocab_size)
    tensors = _tensors_to_write(model, config, vocab_size, dtype)
    shards = _shards(tensors, max_shard_bytes)
    ids = _special_ids(vocab_size, bos_id, eos_ids, pad_id)
    code = config.hf_code()
    files = _tokenizer_files(tokenizer_files, code) | {
        **code,
        CARD: (card if isinstance(card, str) else card.markdown(code)).encode(),
        GENERATION_CONFIG: _json(ids),
    }
    if len(shards) > 1:
        files[INDEX] = _json(_index(shards))
    files[CONFIG] = _json({**stored, **ids, "torch_dtype": _main_dtype(tensors)})
    with _writing(target) as folder:
        for name, shard in shards.items():
            with fsspec.open(join(folder, name), "wb") as file:
                write_tensors(file, shard)
        for name, data in files.items():
            with fsspec.open(join(folder, name), "wb") as file:
                file.write(data)
    total = sum(tensor.bytes for tensor in tensors)
    logger.info("%s: %d tensors in %d file(s), %.1f MB", target, len(tensors), len(shards), total / 1e6)
    return target


def has_hf_model(place: str) -> bool:
    """Whether something is at `place` that `save_hf_model` would have to write over."""
    target = absolute(place)
    volume = _volume(target)
    if volume is not None:
        folder = volume.published_folder(target)
        return folder is not None and bool(volume.names(folder))
    filesystem, path = _filesystem(target)
    return bool(filesystem.exists(f"{path.rstrip('/')}/{CONFIG}"))


def _tensors_to_write(model: Any, config: LmConfig, vocab_size: int, dtype: Any) -> list[TensorToWrite]:
    parameters, table, arrays = config.parameters(vocab_size), config.hf_weights(), arrays_by_name(model)
    expected = arrays_by_name(parameters)
    if arrays.keys() != expected.keys():
        odd = ", ".join(sorted(arrays.keys() ^ expected.keys())[:8])
        raise RefusedError(
            f"found a model that differs from its config in {odd}; needed the arrays that the config describes. Export "
            "it with the config that it was trained with."
        )
    for name, parameter in expected.items():
        shape = tuple(arrays[name].shape)
        fits = len(shape) == len(parameter.shape) and all(
            found == needed or (axis == VOCAB and found > needed)
            for found, needed, axis in zip(shape, parameter.shape, parameter.axes, strict=True)
        )
        if not fits:
            raise RefusedError(
                f"found {name} of shape {list(shape)}; needed {list(parameter.shape)}, or more tokens, for a "
                f"vocabulary of {vocab_size}. Export it with the config and the tokenizer that it was trained with."
            )
    wanted = None if dtype is None else jnp.dtype(dtype)
    tensors = [
        TensorToWrite(
            tensor.name,
            np.dtype(wanted or arrays[tensor.sources[0]].dtype),
            tensor.shape,
            partial(export_tensor, arrays, tensor, table),
        )
        for tensor in hf_tensors(parameters, table)
    ]
    for tensor in tensors:
        dtype_name(tensor.dtype)  # refused now, not when half is written
    return tensors


def _shards(tensors: Sequence[TensorToWrite], max_bytes: int) -> dict[str, list[TensorToWrite]]:
    """The tensors by file, in their order; one that is larger than `max_bytes` has a file of its own."""
    shards: list[list[TensorToWrite]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.bytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard for number, shard in enumerate(shards, 1)}


def _index(shards: Mapping[str, Sequence[TensorToWrite]]) -> dict[str, Any]:
    return {
        "metadata": {"total_size": sum(tensor.bytes for shard in shards.values() for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in shards.items() for tensor in shard},
    }


def _main_dtype(tensors: Sequence[TensorToWrite]) -> str:
    """The type that most bytes have."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype.name] += tensor.bytes
    return sizes.most_common(1)[0][0]


def _special_ids(vocab_size: int, bos_id: int | None, eos_ids: Sequence[int], pad_id: int | None) -> dict[str, Any]:
    given = [one for one in (bos_id, *eos_ids, pad_id) if one is not None]
    if wrong := [one for one in given if not 0 <= one < vocab_size]:
        raise RefusedError(
            f"found the special ids {wrong} beside a vocabulary of {vocab_size}; needed ids within it. Export with the "
            "tokenizer that the model was trained with."
        )
    eos = list(eos_ids) if len(eos_ids) > 1 else next(iter(eos_ids), None)
    ids = {"bos_token_id": bos_id, "eos_token_id": eos, "pad_token_id": pad_id}
    return {name: value for name, value in ids.items() if value is not None}


def _tokenizer_files(files: Mapping[str, bytes], code: Mapping[str, bytes]) -> dict[str, bytes]:
    own = (CONFIG, GENERATION_CONFIG, INDEX, CARD, *code)
    taken = ("", ".", "..", *own)
    if wrong := [name for name in files if "/" in name or name in taken or name.endswith(".safetensors")]:
        raise RefusedError(
            f"found {', '.join(map(repr, wrong))} among the tokenizer's files; needed plain names other than those of "
            "the model. Leave them out."
        )
    return dict(files)


def _json(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@contextmanager
def _writing(target: str) -> Iterator[str]:
    """The folder to write to: a private one, published at the end; in a bucket `target`, as other tools read it."""
    if _volume(target) is None or protocol_of(target) in PROTOCOLS:
        yield target
        return
    with publishing_folder(target) as private:
        yield private


def _volume(target: str) -> Volume | None:
    try:
        return volume_of(target)
    except RefusedError:
        return None


def _filesystem(target: str) -> tuple[Any, str]:
    try:
        filesystem, path = fsspec.core.url_to_fs(target)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"found {target} to export to, whose store cannot be used ({error}); needed a local path or a URL that "
            "fsspec knows. Install what it names, or export to a local path."
        ) from error
    return filesystem, str(path)
