"""Buckets of S3 and of Google, against servers: what is created once, sent twice, slow, gone or forbidden."""

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bucket_servers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.config.errors import RefusedError
from ponente.store import bucket as buckets
from ponente.store import volume as volumes
from ponente.store.bucket import BucketVolume, is_for_the_moment
from ponente.store.checkpoint import begin_save, load, make_permanent, remove, whole_checkpoints, writer
from ponente.store.filesystems import filesystem
from ponente.store.paths import PRIVATE_MARK, protocol_of
from ponente.store.remote import key_value_store
from ponente.store.tensors import open_array, write_array, write_context
from ponente.store.text_log import open_log
from ponente.store.volume import forget_volumes, publishing, publishing_folder, volume_of

Operation = Callable[..., Any]


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> str:
    """A place in a bucket of each kind in turn."""
    return str(request.getfixturevalue("s3_bucket" if request.param == "s3" else "gs_bucket"))


@pytest.fixture
def s3_bucket(bucket_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    bucket_servers.reach(bucket_server, monkeypatch)
    return f"s3://tests/{secrets.token_hex(6)}"


class Disturbed:
    """A filesystem, of which some operations are others."""

    def __init__(self, real: Any, **others: Callable[[Operation], Operation]) -> None:
        self._real = real
        self._others = others

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        return self._others[name](real) if name in self._others else real


def disturbed(bucket: str, monkeypatch: pytest.MonkeyPatch, **others: Callable[[Operation], Operation]) -> BucketVolume:
    """A volume over such a filesystem, which does not pause."""
    monkeypatch.setattr(buckets, "filesystem", lambda protocol: Disturbed(filesystem(protocol), **others))
    volume = BucketVolume(protocol_of(bucket))
    volume._pause = lambda seconds: None
    return volume


def failing(times: int, error: Callable[[], BaseException], *, is_done: bool) -> Callable[[Operation], Operation]:
    """Fails the first times, before or after it has done what it was asked for."""
    left = [times]

    def other(real: Operation) -> Operation:
        def operation(*given: Any, **named: Any) -> Any:
            if not left[0]:
                return real(*given, **named)
            left[0] -= 1
            if is_done:
                real(*given, **named)
            raise error()

        return operation

    return other


def lost() -> BaseException:
    return ConnectionResetError("the answer was lost")


def test_a_create_whose_answer_was_lost_is_known_as_ours(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume_of(bucket).create(f"{bucket}/there", b"somebody's")
    volume = disturbed(bucket, monkeypatch, pipe_file=failing(1, lost, is_done=True))
    volume._tried.add(bucket.split("/")[2])
    assert volume.create(f"{bucket}/log/1", b"mine")
    assert volume.read(f"{bucket}/log/1") == b"mine"
    assert not volume.create(f"{bucket}/log/1", b"mine")  # the same bytes, and yet another's
    assert not volume.create(f"{bucket}/there", b"mine")


def test_files_whose_answer_was_lost_are_known_as_ours(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    volume = disturbed(bucket, monkeypatch, put_file=failing(1, lost, is_done=True))
    for number, expected in enumerate((True, False)):
        folder = tmp_path / f"{PRIVATE_MARK}{number}"
        folder.mkdir()
        (folder / "x").write_bytes(b"whole")
        assert volume.publish_file(str(folder / "x"), f"{bucket}/x") == expected
        assert not folder.exists()


@pytest.mark.parametrize("operation", ["cat_file", "pipe_file", "ls", "exists"])
def test_what_fails_for_the_moment_is_tried_again(operation: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume_of(bucket).replace(f"{bucket}/a", b"1")
    volume = disturbed(bucket, monkeypatch, **{operation: failing(4, lost, is_done=False)})
    volume.replace(f"{bucket}/b", b"2")
    assert volume.read(f"{bucket}/b") == b"2"
    assert sorted(volume.names(bucket)) == ["a", "b"]
    assert volume.exists(f"{bucket}/a") and not volume.exists(f"{bucket}/c")


def test_a_store_that_never_answers_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = disturbed(bucket, monkeypatch, cat_file=failing(100, lost, is_done=False))
    with pytest.raises(OSError, match=rf"no answer from the store after 9 tries .*was lost.*{bucket}/a"):
        volume.read(f"{bucket}/a")


def test_pauses_grow_and_differ(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = disturbed(bucket, monkeypatch, cat_file=failing(100, lost, is_done=False))
    pauses: list[float] = []
    volume._pause = pauses.append
    with pytest.raises(OSError, match="no answer"):
        volume.read(f"{bucket}/a")
    assert len(pauses) == 8 and pauses[-1] > 5 * pauses[0]
    assert all(0.1 <= pause <= 30 for pause in pauses)


def test_what_fails_for_good_is_raised_at_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = disturbed(bucket, monkeypatch, cat_file=failing(1, lambda: PermissionError("Forbidden"), is_done=False))
    with pytest.raises(PermissionError, match=rf"the store refuses access \(.*Forbidden\).*{bucket}/a"):
        volume.read(f"{bucket}/a")
    with pytest.raises(FileNotFoundError):
        volume.read(f"{bucket}/a")
    assert not is_for_the_moment(ValueError("ours"))


def test_answers_of_google_s_are_for_the_moment_or_for_good() -> None:
    from gcsfs.retry import HttpError, validate_response

    def answer(status: int, message: str = "") -> Exception:
        try:
            validate_response(status, json.dumps({"error": {"message": message}}), "gs://b/x")
        except Exception as error:
            return error
        raise AssertionError(status)

    assert isinstance(answer(503), HttpError)
    assert all(is_for_the_moment(answer(status)) for status in (408, 410, 429, 500, 502, 503))
    assert not any(is_for_the_moment(answer(status)) for status in (400, 401, 403, 404, 409, 412))
    assert is_for_the_moment(answer(403, "rateLimitExceeded"))


def test_a_store_that_stands_still_is_not_waited_for_for_ever(gs_bucket: str) -> None:
    assert filesystem("gs").requests_timeout.sock_read == 60


def test_a_store_without_exclusive_create_is_refused_before_anything_is_written(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heedless(real: Operation) -> Operation:
        return lambda path, data, mode="overwrite", **named: real(path, data, mode="overwrite", **named)

    volume = disturbed(bucket, monkeypatch, pipe_file=heedless)
    with pytest.raises(RefusedError, match=r"a store that lets two create the same object; needed one with cond"):
        volume.create(f"{bucket}/log/1", b"mine")
    assert volume.names(f"{bucket}/log") == []


def test_without_credentials_it_says_what_to_set(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_volumes()
    with pytest.raises(RefusedError, match=r"found no credentials for s3://.*Set AWS_ACCESS_KEY_ID and AWS_SECRET"):
        volume_of(s3_bucket).read(f"{s3_bucket}/a")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(protocol: str) -> Any:
        raise ImportError(protocol)

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(RefusedError, match=r"s3fs is not installed; needed it. Run: pip install 'ponente\[cloud\]'"):
        BucketVolume("s3")


def test_folders_are_written_here_and_sent_whole(bucket: str) -> None:
    path, volume = f"{bucket}/out", volume_of(bucket)
    with publishing_folder(path) as private:
        assert private.startswith("/")
        os.makedirs(f"{private}/deep/er")
        Path(private, "deep/er/x").write_bytes(b"1" * 100)
        Path(private, "y").write_bytes(b"2")
        assert volume.names(bucket) == []
    folder = volume.published_folder(path)
    assert folder is not None and volume.read(f"{folder}/deep/er/x") == b"1" * 100
    assert sorted(volume.names(folder)) == ["deep", "y"]
    assert not os.path.exists(private)
    with publishing(f"{bucket}/file") as private:
        Path(private).write_bytes(b"3")
    assert volume.read(f"{bucket}/file") == b"3" and not os.path.exists(private)


def test_what_killed_processes_left_on_the_disk_goes_a_day_later(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(buckets.tempfile, "tempdir", str(tmp_path))
    dead, own = f"{PRIVATE_MARK}{2**22 + 1}-old", f"{PRIVATE_MARK}{os.getpid()}-old"
    for name in (dead, own, "another's"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
        os.utime(tmp_path / name / "x", (1000, 1000))  # as what was unpacked there would say
    made = []
    for days, left in ((0, {dead, own}), (2, {own})):
        now = time.time() + days * 86400
        monkeypatch.setattr(time, "time", lambda now=now: now)
        buckets._remove_remains.cache_clear()
        made.append(Path(volume_of(bucket).private_place(f"{bucket}/a")).parent.name)
        assert {path.name for path in tmp_path.iterdir()} == {"another's", *left, *made}


def test_leftovers_are_what_nothing_points_to_and_only_old_ones(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = volume_of(bucket)
    with publishing_folder(f"{bucket}/kept", is_large=True) as private:
        volume.replace(f"{private}/x", b"1")
    volume.replace(f"{bucket}/{PRIVATE_MARK}lost/y", b"2")
    assert volume.leftovers(bucket) == []

    monkeypatch.setattr(buckets, "_LEFT_SECONDS", -1.0)
    assert volume.leftovers(bucket) == [f"{bucket}/{PRIVATE_MARK}lost"]


def test_of_a_published_folder_the_pointer_goes_first(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with publishing_folder(f"{bucket}/out", is_large=True) as private:
        volume_of(bucket).replace(f"{private}/x", b"1")
    removed: list[str] = []

    def killed(real: Operation) -> Operation:
        def remove(path: str) -> None:
            removed.append(path)
            if len(removed) > 1:
                raise KeyboardInterrupt
            real(path)

        return remove

    volume = disturbed(bucket, monkeypatch, rm_file=killed)
    with pytest.raises(KeyboardInterrupt):
        volume.remove(f"{bucket}/out")
    assert removed == [f"{bucket}/out/.at", f"{private}/x"]
    assert volume.published_folder(f"{bucket}/out") is None


def test_arrays_lie_where_files_do(bucket: str) -> None:
    numbers = np.arange(100_000, dtype=np.int64)
    write_array(f"{bucket}/array", numbers, write_context())
    assert "zarr.json" in volume_of(bucket).names(f"{bucket}/array")
    np.testing.assert_array_equal(open_array(f"{bucket}/array").read().result(), numbers)


@pytest.mark.parametrize(
    ("path", "variables", "store"),
    [
        ("s3://b/x/y", {}, {"driver": "s3", "bucket": "b", "path": "x/y"}),
        (
            "s3://b/x",
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ACCESS_KEY_ID": "k"},
            {"endpoint": "http://h:1", "aws_region": "us-east-1", "aws_credentials": {"type": "environment"}},
        ),
        ("s3://b/x", {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ENDPOINT_URL_S3": "http://h:2"}, {"endpoint": "http://h:2"}),
        ("s3://b/x", {"AWS_DEFAULT_REGION": "eu-west-1"}, {"aws_region": "eu-west-1"}),
        ("gs://b/x/y", {}, {"driver": "gcs", "bucket": "b", "path": "x/y"}),
    ],
)  # fmt: skip
def test_tensorstore_is_told_what_the_filesystem_knows(
    path: str, variables: dict[str, str], store: dict[str, Any]
) -> None:
    found = key_value_store(path, variables)
    assert store.items() <= found.items()


def test_an_endpoint_of_the_vendors_file_is_that_of_files_and_of_arrays(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = os.environ["AWS_ENDPOINT_URL"]
    (tmp_path / "config").write_text(f"[profile here]\nregion = eu-south-2\nendpoint_url = {address}\n")
    (tmp_path / "keys").write_text("[here]\naws_access_key_id = tester\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "here")
    for name in ("AWS_ENDPOINT_URL", *bucket_servers.S3_VARIABLES):
        monkeypatch.delenv(name)
    forget_volumes()
    told = {"endpoint": address, "aws_region": "eu-south-2"}
    assert told.items() <= key_value_store(s3_bucket).items()
    write_array(f"{s3_bucket}/array", np.arange(10), write_context())
    assert "zarr.json" in volume_of(s3_bucket).names(f"{s3_bucket}/array")
    np.testing.assert_array_equal(open_array(f"{s3_bucket}/array").read().result(), np.arange(10))


def test_a_region_of_the_vendors_file_does_not_keep_arrays_from_asking_where_a_bucket_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-south-2\n")
    assert "aws_region" not in key_value_store("s3://b/x", {"AWS_CONFIG_FILE": str(tmp_path / "config")})
    with pytest.raises(RefusedError, match="found AWS_PROFILE=none; needed a profile of"):
        key_value_store("s3://b/x", {"AWS_PROFILE": "none", "AWS_CONFIG_FILE": str(tmp_path / "config")})


def test_a_checkpoint_of_a_bucket_is_made_permanent_listed_and_removed(bucket: str) -> None:
    arrays = {"x": jnp.arange(1000.0)}
    for step in (1, 2):
        begin_save(f"{bucket}/run/step-{step}", arrays, {}, is_temporary=True).wait()
    make_permanent(f"{bucket}/run/step-1")
    found = whole_checkpoints(f"{bucket}/run")
    assert {step: one.is_temporary for step, one in found.items()} == {1: False, 2: True}
    remove(f"{bucket}/run/step-2")
    assert list(whole_checkpoints(f"{bucket}/run")) == [1]
    loaded = load(f"{bucket}/run/step-1", {"x": jax.ShapeDtypeStruct((1000,), jnp.float32)})
    np.testing.assert_array_equal(loaded["x"], arrays["x"])
    left = filesystem(protocol_of(bucket)).find(f"{bucket}/run")  # a store may list an emptied folder for a while
    below = [name.partition("/run/")[2].split("/") for name in left]
    assert {place[1] for place in below if place[0].startswith(PRIVATE_MARK)} == {"step-1"}


def test_writers_of_several_processes_need_no_folder_in_a_bucket(bucket: str) -> None:
    """Of which there are none until the first object comes."""

    class Second:
        index = 1

        def gather(self, name: str, value: Any = None) -> list[Any]:
            return [f"{bucket}/{PRIVATE_MARK}x/step-1" if value is None else value, value]

    with writer._folder_of(f"{bucket}/run/step-1", Second()) as private:
        assert private == f"{bucket}/{PRIVATE_MARK}x/step-1"


def test_a_pointer_that_arrived_though_its_answer_did_not_keeps_its_files(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = disturbed(bucket, monkeypatch)
    monkeypatch.setitem(volumes._VOLUMES, protocol_of(bucket), volume)

    def lost_for_good(path: str, data: bytes) -> bool:
        volume.replace(path, data)
        raise OSError("no answer")

    monkeypatch.setattr(volume, "create", lost_for_good)
    with pytest.raises(OSError, match="no answer"), publishing_folder(f"{bucket}/out", is_large=True) as private:
        volume.replace(f"{private}/x", b"1")
    assert volume.published_folder(f"{bucket}/out") == private
    assert volume.read(f"{private}/x") == b"1"


def test_stores_that_do_not_say_which_condition_failed_are_understood(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vague(real: Operation) -> Operation:
        def put(*given: Any, **named: Any) -> Any:
            try:
                return real(*given, **named)
            except FileExistsError:
                cause = RuntimeError("412")
                cause.response = {"Error": {"Code": "PreconditionFailed"}}  # type: ignore[attr-defined]
                raise OSError(22, "Invalid argument") from cause

        return put

    volume = disturbed(bucket, monkeypatch, pipe_file=vague)
    assert volume.create(f"{bucket}/a", b"1")
    assert not volume.create(f"{bucket}/a", b"1")


def test_a_log_waits_for_no_store_and_loses_nothing_that_it_could_send(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{bucket}/log"
    volume = disturbed(bucket, monkeypatch)
    monkeypatch.setitem(volumes._VOLUMES, protocol_of(bucket), volume)
    is_away, real = [True], volume.replace

    def replace(path: str, data: bytes) -> None:
        if is_away[0]:
            raise OSError("the store is away")
        real(path, data)

    monkeypatch.setattr(volume, "replace", replace)
    with open_log(path) as log:
        log.write(b"first\n")
        log.flush()
        log.write(b"second\n")
        is_away[0] = False
    assert volume.read(path) == b"first\nsecond\n"
    is_away[0] = True
    with open_log(path) as log:
        log.write(b"third\n")
    assert "the log could not be sent: the store is away" in capsys.readouterr().err
