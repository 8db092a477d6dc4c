"""Checkpoints there and back: every type and sharding, bit for bit, and nothing that is not whole."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ponente.config.errors import RefusedError
from ponente.store.checkpoint import CheckpointError, Staging, begin_save, load, newest, read_metadata, step_path
from ponente.store.formats import FormatError
from ponente.store.paths import PRIVATE_MARK

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"))


def bits(array: jax.Array) -> np.ndarray[Any, Any]:
    plain = jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    data = np.asarray(plain)
    return data.reshape(-1).view(np.uint8) if data.size else data


def expect_equal(found: jax.Array, expected: jax.Array) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(bits(found), bits(expected))


def save(folder: Path, arrays: dict[str, jax.Array], step: int = 1, **about: Any) -> str:
    path = step_path(str(folder), step)
    begin_save(path, arrays, about).wait()
    return path


def like(array: jax.Array, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "uint32", "int8", "uint8", "bool", "float8_e4m3fn"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 4, 5)])
def test_every_type_and_shape_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    data = words.view(np.dtype(dtype)).reshape(shape) if dtype != "bool" else (words[..., 0] > 100)
    array = jnp.asarray(data)
    path = save(tmp_path, {"x": array})
    expect_equal(load(path, {"x": like(array)})["x"], array)


def test_nan_payloads_infinities_and_minus_zero_survive(tmp_path: Path) -> None:
    words = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], np.uint32)
    array = jnp.asarray(words.view(np.float32))
    found = load(save(tmp_path, {"x": array}), {"x": like(array)})["x"]
    assert np.asarray(found).view(np.uint32).tolist() == words.tolist()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys_draw_the_same_numbers_after_a_load(impl: str, tmp_path: Path) -> None:
    keys = {"one": jax.random.key(3, impl=impl), "many": jax.random.split(jax.random.key(4, impl=impl), 6)}
    found = load(save(tmp_path, keys), {name: like(key) for name, key in keys.items()})
    for name, key in keys.items():
        expect_equal(found[name], key)
    assert jax.random.uniform(found["one"]) == jax.random.uniform(keys["one"])


LAYOUTS = [
    (),
    ("data",),
    ("model",),
    ("data", "model"),
    (None, "data"),
    (("data", "model"),),
    (None, ("model", "data")),
]


@pytest.mark.parametrize("saved", LAYOUTS, ids=str)
@pytest.mark.parametrize("loaded", [None, *LAYOUTS], ids=str)
def test_an_array_saved_with_one_sharding_loads_with_any_other(
    saved: tuple[Any, ...], loaded: tuple[Any, ...] | None, mesh: Mesh, tmp_path: Path
) -> None:
    array = jax.random.normal(jax.random.key(0), (16, 24))
    path = save(tmp_path, {"x": jax.device_put(array, NamedSharding(mesh, PartitionSpec(*saved)))})
    wanted = None if loaded is None else NamedSharding(mesh, PartitionSpec(*loaded))
    found = load(path, {"x": like(array, wanted)})["x"]
    expect_equal(found, array)
    assert wanted is None or found.sharding.is_equivalent_to(wanted, 2)


def test_sharded_keys_load_on_one_device_and_back(mesh: Mesh, tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    spread = NamedSharding(mesh, PartitionSpec("data"))
    path = save(tmp_path, {"keys": jax.device_put(keys, spread)})
    expect_equal(load(path, {"keys": like(keys)})["keys"], keys)
    expect_equal(load(path, {"keys": like(keys, spread)})["keys"], keys)


def test_arrays_larger_than_a_chunk_come_back_whole(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponente.store.checkpoint.writer.CHUNK_BYTES", 1000)
    monkeypatch.setattr("ponente.store.checkpoint.writer.BYTES_UNDER_WAY", 3000)
    monkeypatch.setattr("ponente.store.checkpoint.reader.BYTES_UNDER_WAY", 3000)
    array = jax.random.normal(jax.random.key(0), (24, 10, 14))
    spread = NamedSharding(mesh, PartitionSpec("data", "model"))
    arrays = {"plain": array, "spread": jax.device_put(array, spread), "odd": jnp.arange(1777.0)}
    path = save(tmp_path, arrays)
    assert len([file for file in Path(path, "plain").iterdir() if file.name.startswith("c")]) > 10
    found = load(path, {"plain": like(array, spread), "spread": like(array), "odd": like(arrays["odd"])})
    for name, expected in arrays.items():
        expect_equal(found[name], expected)


def test_buffers_may_be_donated_as_soon_as_the_call_returns(mesh: Mesh, tmp_path: Path) -> None:
    spread = NamedSharding(mesh, PartitionSpec("data"))
    state = {"one": jnp.arange(1e6), "spread": jax.device_put(jnp.arange(1e6), spread)}
    expected = {name: np.array(array) for name, array in state.items()}
    overwrite = jax.jit(lambda state: {name: array * 0 - 1 for name, array in state.items()}, donate_argnums=0)
    pending = begin_save(step_path(str(tmp_path), 1), state, {})
    overwritten = jax.block_until_ready(overwrite(state))
    assert all(array.is_deleted() for array in state.values())  # nothing of ours kept the buffers from being used
    pending.wait()
    found = load(pending.path, {name: like(array) for name, array in overwritten.items()})
    for name, array in expected.items():
        assert np.array_equal(found[name], array)


def test_memory_that_is_overwritten_after_the_call_is_saved_as_it_was(tmp_path: Path) -> None:
    room = np.zeros((1 << 23) + 16, np.float32)
    start = -room.ctypes.data % 64 // 4  # JAX shares memory that is aligned to 64 bytes
    owner = room[start : start + (1 << 23)]
    owner[:] = np.arange(1 << 23)
    array = jnp.from_dlpack(owner)
    pending = begin_save(step_path(str(tmp_path), 1), {"x": array}, {})
    owner[:] = -1
    assert float(array[5]) == -1, "JAX copied; this shows nothing"
    pending.wait()
    assert np.array_equal(load(pending.path, {"x": like(array)})["x"], np.arange(1 << 23, dtype=np.float32))


def test_what_is_loaded_may_be_donated(tmp_path: Path) -> None:
    path = save(tmp_path, {"x": jnp.arange(4096.0)})
    found = load(path, {"x": like(jnp.arange(4096.0))})["x"]
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(found)
    assert np.array_equal(doubled, np.arange(4096.0) * 2)


def test_one_staging_serves_saves_of_different_states(tmp_path: Path) -> None:
    staging = Staging()
    states = [{"a": jnp.arange(10.0)}, {"a": jnp.arange(7), "b": jnp.ones(3)}, {"b": jnp.zeros((3, 1))}, {}]
    saves = [
        begin_save(step_path(str(tmp_path), step), state, {}, staging=staging) for step, state in enumerate(states)
    ]
    for pending, state in zip(saves, states, strict=True):
        pending.wait()
        found = load(pending.path, {name: like(array) for name, array in state.items()})
        for name, array in state.items():
            expect_equal(found[name], array)


def test_the_metadata_says_what_is_there(tmp_path: Path) -> None:
    path = step_path(str(tmp_path), 1200)
    arrays = {"model.w": jnp.ones((2, 3), jnp.bfloat16), "step": jnp.int32(4)}
    begin_save(path, arrays, {"seed": 3, "nested": {"a": [1, None, "x"]}}, is_temporary=True).wait()
    metadata = read_metadata(path)
    assert (metadata.step, metadata.is_temporary) == (1200, True)
    assert {name: (one.shape, one.dtype) for name, one in metadata.arrays.items()} == {
        "model.w": ((2, 3), "bfloat16"),
        "step": ((), "int32"),
    }
    assert metadata.about == {"seed": 3, "nested": {"a": [1, None, "x"]}}
    assert metadata.timestamp.endswith("+00:00")


def test_plain_zarr_reads_a_checkpoint(mesh: Mesh, tmp_path: Path) -> None:
    array = jnp.arange(64.0).reshape(8, 8)
    path = save(tmp_path, {"model.w": jax.device_put(array, NamedSharding(mesh, PartitionSpec("data", "model")))})
    group = zarr.open_group(path, mode="r")
    assert np.array_equal(np.asarray(group["model.w"]), array)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"model.w": jnp.ones(3), "optimizer.mu": jnp.zeros(3)})
    for file in Path(path, "optimizer.mu").iterdir():
        file.unlink()
    assert list(load(path, {"model.w": like(jnp.ones(3))})) == ["model.w"]


def test_all_that_does_not_fit_is_told_at_once_and_nothing_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"kept": jnp.ones(3), "shape": jnp.ones((4, 8)), "type": jnp.ones(2), "old": jnp.ones(1)})
    for file in Path(path, "kept").iterdir():
        file.unlink()  # reading it would be an error of its own
    wanted = {
        "kept": like(jnp.ones(3)),
        "shape": like(jnp.ones((4, 16))),
        "type": like(jnp.ones(2, jnp.bfloat16)),
        "new": like(jnp.ones(1)),
    }
    with pytest.raises(CheckpointError) as caught:
        load(path, wanted)
    said = str(caught.value)
    assert f"found {path} without new; it has, unasked, old" in said
    assert "shape (float32[4, 8] there, float32[4, 16] wanted)" in said
    assert "type (float32[2] there, bfloat16[2] wanted)" in said
    assert "kept (" not in said
    assert "needed every array" in said


def test_a_partial_checkpoint_gives_what_it_has_and_names_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path, {"a": jnp.ones(3), "b": jnp.ones(4)})
    wanted = {"a": like(jnp.ones(3)), "fresh": like(jnp.ones(5))}
    with pytest.raises(CheckpointError, match="allow_partial_checkpoint"):
        load(path, wanted)
    assert list(load(path, wanted, allow_missing=True)) == ["a"]
    assert "fresh" in caplog.text
    with pytest.raises(CheckpointError, match=r"another shape.*To begin anew .* another trainer\.id\.$"):
        load(path, {"b": like(jnp.ones(5))}, allow_missing=True)


def test_what_has_no_place_in_what_is_to_be_whole_is_refused_or_dropped_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path, {"model.a": jnp.ones(3), "model.b": jnp.ones(4), "optimizer.c": jnp.ones(2)})
    wanted = {"model.a": like(jnp.ones(3))}
    assert list(load(path, wanted)) == list(load(path, wanted, every="optimizer.d")) == ["model.a"]
    told = r"found \S+ with model\.b, for which there is no place; .*allow_partial_checkpoint"
    with pytest.raises(CheckpointError, match=told):
        load(path, wanted, every="model.")
    assert not caplog.records
    assert list(load(path, wanted, every="model.", allow_missing=True)) == ["model.a"]
    assert "model.b, for which there is no place: dropped" in caplog.text


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_a_damaged_or_lost_chunk_is_an_error_that_names_it(harm: Callable[[Path], None], tmp_path: Path) -> None:
    path = save(tmp_path, {"model.w": jnp.zeros(1000)})
    harm(Path(path, "model.w", "c.0"))
    with pytest.raises(CheckpointError, match=r"model\.w") as caught:
        load(path, {"model.w": like(jnp.zeros(1000))})
    assert f"remove {path} to go on" in str(caught.value)


@pytest.mark.parametrize("harm", [flip, cut])
def test_a_damaged_record_is_an_error_that_names_it(harm: Callable[[Path], None], tmp_path: Path) -> None:
    path = save(tmp_path, {"model.w": jnp.zeros(10)}, note="x" * 400)
    harm(Path(path, "zarr.json"))
    with pytest.raises(FormatError, match=r"zarr\.json"):
        read_metadata(path)


def test_an_array_that_is_not_what_the_record_says_is_damage(tmp_path: Path) -> None:
    path = save(tmp_path, {"w": jnp.zeros(10)})
    described = json.loads(Path(path, "w", "zarr.json").read_text())
    Path(path, "w", "zarr.json").write_text(json.dumps(described | {"shape": [9]}))
    with pytest.raises(CheckpointError, match="damaged"):
        load(path, {"w": like(jnp.zeros(10))})


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = save(tmp_path, {"w": jnp.zeros(1)})
    file = Path(path, "zarr.json")
    file.write_text(file.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(CheckpointError, match="Upgrade"):
        read_metadata(path)
    with pytest.raises(CheckpointError, match="Upgrade"):
        newest(str(tmp_path))  # to pass over it would be to begin anew


def test_where_there_is_no_checkpoint_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found no checkpoint at"):
        load(str(tmp_path / "step-1"), {})


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "zarr.json", "x" * 201])
def test_names_that_are_no_folder_names_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="needed letters"):
        begin_save(step_path(str(tmp_path), 1), {name: jnp.ones(1)}, {})
    assert not list(tmp_path.iterdir())


def test_metadata_that_is_no_json_is_refused_and_the_staging_is_free_again(tmp_path: Path) -> None:
    staging = Staging()
    with pytest.raises(RefusedError, match="JSON"):
        begin_save(step_path(str(tmp_path), 1), {"w": jnp.ones(1)}, {"odd": object()}, staging=staging)
    begin_save(step_path(str(tmp_path), 1), {"w": jnp.ones(1)}, {}, staging=staging).wait()


def test_a_folder_of_others_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "theirs").touch()
    with pytest.raises(RefusedError, match="no checkpoint of ours"):
        begin_save(str(tmp_path / "step-1"), {"w": jnp.ones(1)}, {})
    assert [file.name for file in (tmp_path / "step-1").iterdir()] == ["theirs"]


def test_a_checkpoint_that_is_there_stays(tmp_path: Path) -> None:
    path = save(tmp_path, {"w": jnp.ones(3)})
    save(tmp_path, {"w": jnp.zeros(3)})
    assert np.array_equal(load(path, {"w": like(jnp.ones(3))})["w"], np.ones(3))


def test_nothing_is_seen_before_it_is_whole_and_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    seen = []
    path = step_path(str(tmp_path), 1)
    begin_save(path, {"w": jnp.ones(3)}, {}, when_whole=lambda: seen.append(read_metadata(path).step)).wait()
    assert seen == [1]
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder would be")
    pending = begin_save(str(blocked / "step-1"), {"w": jnp.ones(3)}, {}, when_whole=lambda: seen.append(2))
    with pytest.raises(CheckpointError, match=f"found that {blocked}/step-1 cannot be written"):
        pending.wait()
    assert pending.is_done()
    assert seen == [1]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(PRIVATE_MARK)]


SAVES = """
import sys, jax, jax.numpy as jnp, numpy as np
from pathlib import Path
from ponente.store.checkpoint import Staging, begin_save, remove

def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

step_forward = jax.jit(lambda state: [array + 1 for array in state], donate_argnums=0)
state, staging = [jnp.ones((size << 18,)) for size in (12, 8, 8, 4)], Staging()  # 32 MB
for step in range(20):
    path = f"{sys.argv[1]}/step-{step}"
    pending = begin_save(path, {f"x{i}": array for i, array in enumerate(state)}, {}, staging=staging)
    state = jax.block_until_ready(step_forward(state))
    pending.wait()
    remove(path)
    print(memory())
"""


def test_host_memory_stays_flat_over_twenty_saves(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": ""}
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    megabytes = [int(line) for line in done.stdout.split()]
    assert len(megabytes) == 20
    assert max(megabytes[5:]) - megabytes[4] < 8, megabytes


def test_a_checkpoint_of_format_1_loads_for_ever() -> None:
    spec = importlib.util.spec_from_file_location("make_format_1", GOLDEN / "make_format_1.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    path = str(GOLDEN / "format-1" / "step-3")
    metadata = read_metadata(path)
    assert (metadata.step, metadata.is_temporary) == (3, True)
    assert metadata.about == {"run": "golden", "seen": [1, None, 2.5]}
    expected = maker.arrays()
    assert set(metadata.arrays) == set(expected)
    found = load(path, {name: like(array) for name, array in expected.items()})
    for name, array in expected.items():
        expect_equal(found[name], array)
