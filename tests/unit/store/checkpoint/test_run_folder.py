"""Which checkpoints a folder has, and who may write there."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from ponente.config.errors import RefusedError
from ponente.store.checkpoint import (
    FolderHold,
    begin_save,
    make_permanent,
    newest,
    read_metadata,
    remove,
    remove_leftovers,
    step_path,
    whole_checkpoints,
)


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        begin_save(step_path(str(folder), step), {"step": jnp.int32(step)}, {}, is_temporary=True).wait()


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    assert newest(str(tmp_path)) is None
    assert newest(str(tmp_path / "absent")) is None
    save(tmp_path, 9, 100, 20)
    assert newest(str(tmp_path)) == str(tmp_path / "step-100")
    assert list(whole_checkpoints(str(tmp_path))) == [9, 20, 100]


def test_leftovers_and_folders_of_others_are_no_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 7)
    (tmp_path / ".part-1234" / "step-9").mkdir(parents=True)
    (tmp_path / "step-8").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-010").mkdir()
    (tmp_path / "step-11").touch()
    (tmp_path / "12").mkdir()
    (tmp_path / "step-13").mkdir()
    (tmp_path / "step-13" / "metadata.json").write_text('{"step": 13}')
    assert newest(str(tmp_path)) == str(tmp_path / "step-7")
    assert list(whole_checkpoints(str(tmp_path))) == [7]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"zarr_format": 3, "node_type": "group"}'])
def test_a_record_that_cannot_be_read_is_passed_over_with_a_warning(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "step-2" / "zarr.json").write_bytes(content)
    assert newest(str(tmp_path)) == str(tmp_path / "step-1")
    assert "step-2" in caplog.text


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    os.rename(tmp_path / "step-2", tmp_path / "step-5")
    assert newest(str(tmp_path)) == str(tmp_path / "step-1")


def test_removing_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    remove(str(tmp_path / "step-2"))
    remove(str(tmp_path / "step-2"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_leftovers_go_and_the_rest_stays(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / ".part-1234" / "step-9").mkdir(parents=True)
    (tmp_path / ".part-5678").touch()
    (tmp_path / "theirs").mkdir()
    remove_leftovers(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "theirs"]


def test_a_temporary_checkpoint_can_be_made_permanent(tmp_path: Path) -> None:
    save(tmp_path, 1)
    before = read_metadata(str(tmp_path / "step-1"))
    make_permanent(str(tmp_path / "step-1"))
    after = read_metadata(str(tmp_path / "step-1"))
    assert (before.is_temporary, after.is_temporary) == (True, False)
    assert (after.step, after.timestamp, after.arrays) == (before.step, before.timestamp, before.arrays)


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    hold = FolderHold(str(tmp_path))
    with pytest.raises(RefusedError, match=f"in use by the process {os.getpid()}"):
        FolderHold(str(tmp_path))
    hold.release()
    FolderHold(str(tmp_path)).release()


def test_another_process_is_kept_out_until_the_holder_ends(tmp_path: Path) -> None:
    program = "import sys; from ponente.store.checkpoint import FolderHold; FolderHold(sys.argv[1])"
    command = [sys.executable, "-c", program, str(tmp_path)]
    hold = FolderHold(str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "RefusedError" in done.stderr
    hold.release()
    assert subprocess.run(command).returncode == 0
    FolderHold(str(tmp_path)).release()
