"""Checkpoints that several processes write together; threads stand for processes here."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.store.checkpoint import CheckpointError, begin_save, load, step_path, whole_checkpoints
from ponente.store.checkpoint import writer as writer_module

COUNT = 3
ELSEWHERE = r"found no .*-elsewhere on this machine.*all processes see|process 1 ended"  # as one of the others has said


class Together:
    """What some threads gather."""

    def __init__(self) -> None:
        self._given: dict[str, dict[int, Any]] = {}
        self._changed = threading.Condition()
        self.failure: str | None = None

    def writer(self, index: int) -> "Writer":
        return Writer(self, index)

    def gather(self, index: int, name: str, value: Any) -> list[Any]:
        with self._changed:
            self._given.setdefault(name, {})[index] = value
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self._given[name]) == COUNT or self.failure, timeout=30)
            if self.failure:
                raise OSError(self.failure)
            return [self._given[name][one] for one in range(COUNT)]

    def fail(self, message: str) -> None:
        with self._changed:
            self.failure = message
            self._changed.notify_all()


class Writer:
    def __init__(self, together: Together, index: int) -> None:
        self.index, self._together = index, together

    def gather(self, name: str, value: Any = None) -> list[Any]:
        return self._together.gather(self.index, name, value)


@pytest.mark.parametrize("step", range(15))
def test_what_several_write_is_one_checkpoint(step: int, tmp_path: Path) -> None:
    arrays = {f"array{number}": jax.random.normal(jax.random.key(number), (64, 32)) for number in range(6)}
    together, path, whole = Together(), step_path(str(tmp_path), step), []

    def save(index: int) -> None:
        pending = begin_save(
            path, arrays, {"x": 1}, writers=together.writer(index), when_whole=lambda: whole.append(index)
        )
        pending.wait()
        assert whole_checkpoints(str(tmp_path)).keys() == {step}  # for each of them, once it is told

    with ThreadPoolExecutor(COUNT) as threads:
        list(threads.map(save, range(COUNT)))
    assert sorted(whole) == [0, 1, 2]
    assert [one.name for one in tmp_path.iterdir()] == [f"step-{step}"]
    found = load(path, {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()})
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_nothing_is_published_where_one_of_them_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together()
    arrays = {"array": jnp.arange(8.0)}

    def save(index: int) -> None:
        writer = together.writer(index)
        if index == 2:
            private = writer.gather(f"the folder of {tmp_path}/step-1")[0]
            writer.gather(f"{private} is written")
            together.fail("process 2 is gone")
            return
        with pytest.raises(CheckpointError, match=r"process 2 is gone|No such file"):  # the first has removed it
            begin_save(step_path(str(tmp_path), 1), arrays, {}, writers=writer).wait()

    with ThreadPoolExecutor(COUNT) as threads:
        list(threads.map(save, range(COUNT)))
    assert not list(tmp_path.iterdir())


def test_no_file_comes_or_goes_while_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    write, sync = writer_module._write_arrays, writer_module._sync

    def slow_write(folder: str, taken: Any) -> None:
        write(folder, taken)
        time.sleep(0.1 * len(order))
        order.append("written")

    def noted_sync(folder: str, taken: Any) -> None:
        order.append("synced")
        sync(folder, taken)

    monkeypatch.setattr(writer_module, "_write_arrays", slow_write)
    monkeypatch.setattr(writer_module, "_sync", noted_sync)
    together, path = Together(), step_path(str(tmp_path), 1)
    with ThreadPoolExecutor(COUNT) as threads:
        saves = [
            threads.submit(begin_save, path, {"x": jnp.arange(3)}, {}, writers=together.writer(index))
            for index in range(COUNT)
        ]
        for save in saves:
            save.result(timeout=30).wait()
    assert order == ["written"] * COUNT + ["synced"] * COUNT


def test_a_folder_that_another_process_does_not_see_is_an_error(tmp_path: Path) -> None:
    together = Together()

    said: list[str] = []

    class Elsewhere(Writer):
        """On a machine where the first process's folder is not."""

        def gather(self, name: str, value: Any = None) -> list[Any]:
            found = super().gather(name, value)
            return [f"{found[0]}-elsewhere"] if name.startswith("the folder") else found

    def save(index: int) -> None:
        if index:
            with pytest.raises(CheckpointError, match=ELSEWHERE) as told:
                begin_save(
                    step_path(str(tmp_path), 1), {"x": jnp.arange(3)}, {}, writers=Elsewhere(together, index)
                ).wait()
            said.append(str(told.value))
            together.fail("process 1 ended")
            return
        with pytest.raises(CheckpointError, match="process 1 ended"):
            begin_save(step_path(str(tmp_path), 1), {"x": jnp.arange(3)}, {}, writers=together.writer(0)).wait()

    with ThreadPoolExecutor(COUNT) as threads:
        list(threads.map(save, range(COUNT)))
    assert not list(tmp_path.iterdir())
    assert any("on this machine" in one for one in said)
