"""Hugging Face folders as they are found: whole, in shards, at URLs, damaged."""

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hf_models import BF16, safetensors_bytes, tensors_of, write_model
from model_variants import VARIANTS

from ponente.config.errors import UserError
from ponente.models.hf_folder import HfModelFolder, open_hf_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", "llama", dtype=BF16)


def names(place: Path | str) -> tuple[str, ...]:
    return open_hf_model(str(place)).names


def in_two_files(folder: Path) -> Path:
    """The same model in two shards with an index."""
    tensors = list(tensors_of(VARIANTS["llama"], BF16).items())
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number, part in enumerate((tensors[:7], tensors[7:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        (folder / file).write_bytes(safetensors_bytes(dict(part)))
        weight_map |= {name: file for name, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def in_memory(folder: Path, place: str) -> str:
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe_file(f"/{place}/{file.name}", file.read_bytes())
    return f"memory://{place}"


def assert_same(found: HfModelFolder) -> None:
    expected = tensors_of(VARIANTS["llama"], BF16)
    assert set(found.names) == set(expected)
    for name, array in expected.items():
        read = found.read(name)
        assert read.dtype == BF16 and np.array_equal(read, array)
        assert found.tensors[name].shape == array.shape


def test_every_tensor_is_read_as_it_is_stored_here_and_at_a_url(model: Path) -> None:
    for place in (str(model), f"file://{model}", in_memory(model, "test-hf-folder/whole")):
        assert_same(open_hf_model(place))


def test_a_model_in_several_files_is_one_model(model: Path) -> None:
    in_two_files(model)
    for place in (str(model), in_memory(model, "test-hf-folder/shards")):
        assert_same(open_hf_model(place))


def test_rows_are_read_alone(model: Path) -> None:
    whole = tensors_of(VARIANTS["llama"], BF16)["model.embed_tokens.weight"]
    for place in (str(model), in_memory(model, "test-hf-folder/rows")):
        rows = open_hf_model(place).read_rows("model.embed_tokens.weight", 3, 11)
        assert np.array_equal(rows, whole[3:11])


def test_small_files_come_with_the_model(model: Path) -> None:
    (model / "tokenizer.json").write_bytes(b"{}")
    (model / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (model / "pickle.pkl").write_bytes(b"never read")
    found = open_hf_model(str(model))
    assert found.config["hidden_size"] == 32
    assert found.generation_config == {"eos_token_id": [2, 5]}
    assert found.files == {"tokenizer.json": b"{}"}


def test_the_config_is_read_before_any_weights_are_looked_for(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert open_hf_model(str(model)).config["model_type"] == "llama"


def change_header(model: Path, **values: Any) -> None:
    file = model / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"] |= values
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes()[:500]),
        lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes((5).to_bytes(8, "little") + b"[1,2]"),
        lambda file: change_header(file.parent, shape=[31]),
        lambda file: change_header(file.parent, shape=[-1, -32]),
        lambda file: change_header(file.parent, data_offsets=[-64, 0]),
        lambda file: change_header(file.parent, data_offsets=[1 << 40, (1 << 40) + 64]),
        lambda file: change_header(file.parent, data_offsets=["a", "b"]),
    ],
)
def test_a_damaged_file_is_named(model: Path, damage: Any) -> None:
    damage(model / "model.safetensors")
    for place in (str(model), in_memory(model, f"test-hf-folder/damaged-{abs(hash(damage))}")):
        with pytest.raises(UserError, match=r"found .*model\.safetensors damaged: .*; needed .* Fetch it again"):
            names(place)


def test_types_that_are_not_read_are_named(model: Path) -> None:
    change_header(model, dtype="F8_E4M3")
    with pytest.raises(
        UserError, match=r"found model\.norm\.weight of type F8_E4M3 .* needed one of F64, F32, F16, BF16"
    ):
        names(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    (in_two_files(model) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"without model-00002-of-00002\.safetensors, .* needed all 2 of its files"):
        names(model)


def test_an_index_that_belongs_to_other_files_is_refused(model: Path) -> None:
    index = in_two_files(model) / "model.safetensors.index.json"
    stored = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {**stored["weight_map"], "other": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(UserError, match=r"found no other in the files of .* Fetch the model again"):
        names(model)
    for file in ("../model.safetensors", "/etc/passwd", 3):
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(UserError, match="without a weight_map from tensors to files beside it"):
            names(model)


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"weights as pytorch_model\.bin only, which are pickles .* Convert it"):
        names(model)


def test_a_place_without_a_model_says_what_is_there(tmp_path: Path, model: Path) -> None:
    for place in (str(tmp_path / "nowhere"), "memory://test-hf-folder/nowhere", "./nowhere"):
        with pytest.raises(UserError, match=r"found nothing at .*; needed a folder with a config\.json"):
            open_hf_model(place)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"with notes\.txt; needed a config\.json"):
        open_hf_model(str(tmp_path / "other"))
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"with config\.json and no weights; needed model\.safetensors"):
        names(model)
    (model / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"found config\.json of .* to be no JSON object"):
        open_hf_model(str(model))
    with pytest.raises(UserError, match=r"nosuch://place could not be read \(ValueError: Protocol not known"):
        open_hf_model("nosuch://place")
