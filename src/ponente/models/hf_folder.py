"""A Hugging Face model's folder, wherever it lies: a local path, any fsspec URL, or a name on the hub.

In: what the user wrote. Out: its config.json and small files at once, and its tensors one at a time. Weights are looked
for when first asked for, so that an unfit config.json is refused before gigabytes are fetched. Only safetensors are
read; nothing pickled ever is.
"""

import posixpath
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeVar

import fsspec
import msgspec
import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import RefusedError, UserError
from ponente.models.safetensors_file import StoredTensor, read_header
from ponente.store.paths import absolute, basename
from ponente.store.tokenizer_files import TOKENIZER_FILES
from ponente.store.volume import volume_of

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Found = TypeVar("Found")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Files:
    """The files of one folder, by name."""

    filesystem: Any  # of fsspec, which has no types
    folder: str
    is_local: bool

    def names(self) -> list[str]:
        return sorted(basename(str(path)) for path in self.filesystem.ls(self.folder, detail=False))

    def path(self, name: str) -> str:
        return f"{self.folder.rstrip('/')}/{name}"

    def size(self, name: str) -> int:
        return int(self.filesystem.size(self.path(name)))

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=stop)
        return data

    def array(self, name: str, tensor: StoredTensor) -> NDArray[Any]:
        """A tensor: mapped into memory where the file is local, else read."""
        if self.is_local and tensor.bytes:
            mapped = np.memmap(self.path(name), np.uint8, "r", tensor.start, (tensor.bytes,))
            return np.asarray(mapped).view(tensor.dtype).reshape(tensor.shape)
        data = self.read(name, tensor.start, tensor.start + tensor.bytes) if tensor.bytes else b""
        if len(data) != tensor.bytes:
            raise UserError(
                f"found {len(data)} bytes of {self.path(name)} where {tensor.bytes} were asked for; needed a whole "
                "file that nobody changes. Try again."
            )
        return np.frombuffer(data, tensor.dtype).reshape(tensor.shape)


@dataclass(frozen=True)
class HfModelFolder:
    """A Hugging Face model: what its small files say, and its tensors by name."""

    place: str  # as the user wrote it
    config: dict[str, Any]
    generation_config: dict[str, Any]
    files: dict[str, bytes]  # those of the tokenizer
    _fetch: Callable[[], Files]

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(self.tensors)

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Types and shapes of all tensors, from the headers alone."""
        return {name: tensor for name, (_, tensor) in self._weights.items()}

    def read(self, name: str) -> NDArray[Any]:
        """A tensor in the type that it is stored in; read-only, and a view of the file where that is local."""
        file, tensor = self._weights[name]
        return self._files.array(file, tensor)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Some entries of a tensor's first dimension; no others are read."""
        file, tensor = self._weights[name]
        return self._files.array(file, tensor.rows(start, stop))

    @cached_property
    def _files(self) -> Files:
        return self._fetch()

    @cached_property
    def _weights(self) -> dict[str, tuple[str, StoredTensor]]:
        return _find_tensors(self.place, self._files)


def open_hf_model(place: str) -> HfModelFolder:
    """The model at `place`.

    Args:
        place: a folder, local or by any fsspec URL, or a hub name ("gpt2", "org/name@revision"), whose copy in the
            hub's local cache serves where the hub cannot be reached. What lies here goes before the hub.

    Example: `open_hf_model("HuggingFaceTB/SmolLM2-135M-Instruct").read("model.norm.weight").shape == (576,)`
    """
    files = _folder_at(place)
    if files is not None:
        return _opened(place, files, lambda: files)
    if "://" in place or place.startswith(("/", "./", "../", "~")):
        raise UserError(f"found nothing at {place}; needed a folder with a config.json. Check the path.")
    hub = _hub(place)
    small = hub.fetch_small_files(place)
    return _opened(place, _local(small), lambda: _local(hub.fetch_weights(place, small)))


def _hub(place: str) -> Any:
    if find_spec("huggingface_hub") is None:
        raise UserError(
            f"found no folder {place!r} here, and no huggingface_hub to ask the hub with; needed one of them. Give the "
            "path or URL of a model's folder, or: pip install 'ponente[hub]'"
        )
    from ponente.models import hf_hub

    return hf_hub


def _opened(place: str, files: Files, fetch: Callable[[], Files]) -> HfModelFolder:
    names = _guarded(place, files.names)
    if CONFIG not in names:
        raise UserError(
            f"found {place} with {', '.join(names) or 'no file'}; needed a config.json, as models of transformers have "
            "it. Give the folder that holds it."
        )
    config = _json(place, files, CONFIG)
    generation = _json(place, files, GENERATION_CONFIG) if GENERATION_CONFIG in names else {}
    small = [name for name in TOKENIZER_FILES if name in names]
    tokenizer = _guarded(place, lambda: {name: files.read(name) for name in small})
    return HfModelFolder(place, config, generation, tokenizer, fetch)


def _folder_at(place: str) -> Files | None:
    folder = absolute(place)
    with suppress(RefusedError):  # a protocol that cannot hold a graph can still be read
        folder = volume_of(folder).published_folder(folder) or folder

    def look() -> Files | None:
        filesystem, path = fsspec.core.url_to_fs(folder)
        found = Files(filesystem, str(path), "file" in _protocols(filesystem))
        try:
            return found if filesystem.isdir(path) else None
        except FileNotFoundError:  # a bucket that is not there
            return None

    return _guarded(place, look)


def _local(folder: str) -> Files:
    return Files(fsspec.filesystem("file"), folder, is_local=True)


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _guarded(place: str, act: Callable[[], Found]) -> Found:
    try:
        return act()
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"found that {place} could not be read ({type(error).__name__}: {error}); needed a folder with a "
            "config.json and safetensors. Check the place and the credentials, or copy the folder to this machine and "
            "give its path."
        ) from error


def _json(place: str, files: Files, name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_guarded(place, lambda: files.read(name)), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"found {name} of {place} to be no JSON object ({error}); needed the file that belongs to the model. Fetch "
            "it again."
        ) from error


def _find_tensors(place: str, files: Files) -> dict[str, tuple[str, StoredTensor]]:
    """The file and the place in it of every tensor, from the index and the headers."""
    names = _guarded(place, files.names)
    if WEIGHTS in names:
        return {tensor: (WEIGHTS, stored) for tensor, stored in _header(place, files, WEIGHTS).items()}
    if INDEX not in names:
        raise _no_weights(place, names)
    weight_map = _json(place, files, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(_is_plain(file) for file in weight_map.values()):
        raise UserError(
            f"found {INDEX} of {place} without a weight_map from tensors to files beside it; needed one. Fetch it "
            "again."
        )
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if shard not in names]:
        raise UserError(
            f"found {place} without {', '.join(missing)}, which its {INDEX} names; needed all {len(shards)} of its "
            "files. Fetch the missing ones."
        )
    headers = {shard: _header(place, files, shard) for shard in shards}
    if absent := [tensor for tensor, shard in weight_map.items() if tensor not in headers[shard]]:
        raise UserError(
            f"found no {', '.join(absent[:5])} in the files of {place} where its {INDEX} says; needed an index that "
            "belongs to the files. Fetch the model again."
        )
    return {tensor: (shard, headers[shard][tensor]) for tensor, shard in weight_map.items()}


def _is_plain(file: Any) -> bool:
    """Whether it names a file of the same folder, and none elsewhere."""
    return isinstance(file, str) and file not in ("", ".", "..") and posixpath.basename(file) == file


def _header(place: str, files: Files, name: str) -> dict[str, StoredTensor]:
    def read() -> dict[str, StoredTensor]:
        return read_header(files.path(name), files.size(name), lambda start, stop: files.read(name, start, stop))

    return _guarded(place, read)


def _no_weights(place: str, names: list[str]) -> UserError:
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        return RefusedError(
            f"found {place} with weights as {', '.join(pickled[:3])} only, which are pickles and could run any code; "
            f"needed {WEIGHTS} or {INDEX} with its files. Convert it with transformers (save_pretrained) on a machine "
            "where you trust it, or take a revision that has safetensors."
        )
    return UserError(
        f"found {place} with {', '.join(names) or 'no file'} and no weights; needed {WEIGHTS}, or {INDEX} with its "
        "files. Give a folder that holds them; weights in other forms (pytorch_model.bin) are never read."
    )
