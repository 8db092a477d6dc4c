"""Fixtures for all tests.

Real data lies outside the project, in ../shared/data: a test that wants it skips where ../shared is absent, and fails
where ../shared is there but the data is not.
"""

import errno
import json
import os
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bucket_servers
import pytest
from quick import QUICK

DEVICES = "--xla_force_host_platform_device_count=8"
FLAGS = f"{DEVICES} {QUICK}"
os.environ.setdefault("XLA_FLAGS", FLAGS)  # before JAX is imported
os.environ.setdefault("JAX_PLATFORMS", "cpu")
collect_ignore = [] if "cuda" in os.environ["JAX_PLATFORMS"] else ["gpu"]  # make test-gpu

SHARED = Path(__file__).resolve().parents[2] / "shared"
UNPACKED = Path.home() / ".cache" / "ponente-data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits more than it computes, and is one process's for its cluster, begins first: the others go on beside."""
    items.sort(key=lambda item: item.path.name != "test_on_ray.py")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that tests share are compiled once, by whichever of pytest's processes comes first."""
    import jax
    from jax._src.lru_cache import LRUCache

    jax.devices()
    if os.environ["XLA_FLAGS"] == FLAGS:  # commands that tests run are compiled as users have them
        os.environ["XLA_FLAGS"] = DEVICES
    LRUCache.put = _put_whole
    own = tmp_path_factory.getbasetemp()
    every = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    jax.config.update("jax_compilation_cache_dir", str(every / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _put_whole(cache: Any, key: str, value: bytes) -> None:
    """Keeps a program in JAX's cache; JAX itself writes where another process may be reading."""
    private = cache.path / f"{key}-{os.getpid()}-{threading.get_ident()}"
    private.write_bytes(value)
    os.replace(private, cache.path / f"{key}-cache")  # its own paths, where etils is installed, replace nothing


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("corpora")` is the folder of that archive, unpacked once a machine."""
    return _unpacked


def _unpacked(name: str) -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"wants the archive {name} of {SHARED}/data, and there is no {SHARED}")
    if not (SHARED / "data" / f"{name}.tar.xz").is_file():
        pytest.fail(f"found {SHARED} without data/{name}.tar.xz; restore the archive")
    target = UNPACKED / name
    if not target.is_dir():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED, prefix=".unpacking-") as private:
            subprocess.run([SHARED / "data" / "unpack", private, name], check=True, stdout=subprocess.DEVNULL)
            _rename_unless_there(Path(private) / name, target)
    return target


def _rename_unless_there(private: Path, target: Path) -> None:
    try:
        os.rename(private, target)
    except OSError as error:  # another worker was first
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


_KIND = os.environ.get(bucket_servers.KIND_VARIABLE, "moto")


@pytest.fixture(scope="session")
def bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of this process alone: moto's, or what a soak asks for."""
    with bucket_servers.KINDS[_KIND](tmp_path_factory.mktemp(_KIND)) as address:
        yield address


@pytest.fixture
def bucket(bucket_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh place in a bucket, which this process and those that it starts can reach."""
    protocol = bucket_servers.protocol_of(_KIND)
    bucket_servers.reach(bucket_server, monkeypatch, protocol)
    return f"{protocol}://tests/{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of this process alone that speaks as Google's does."""
    with bucket_servers.gcs(tmp_path_factory.mktemp("gcs")) as address:
        yield address


@pytest.fixture
def gs_bucket(gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, in a bucket of Google's kind."""
    bucket_servers.reach(gcs_server, monkeypatch, "gs")
    return f"gs://tests/{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def tiny_texts() -> list[str]:
    """Some speeches of Shakespeare."""
    play = Path(__file__).resolve().parents[1] / "experiments" / "tutorials" / "shakespeare.txt"
    return play.read_text().split("\n\n")[:600]


@pytest.fixture(scope="session")
def tiny_corpus(tiny_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of six JSONL files, `00.jsonl` to `05.jsonl`, with a hundred speeches each."""
    folder = tmp_path_factory.mktemp("tiny_corpus")
    for number in range(6):
        lines = [json.dumps({"text": text, "id": number}) for text in tiny_texts[number::6]]
        (folder / f"{number:02d}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a byte-level BPE of 400 tokens."""
    from ponente.tokens.bpe import train_bpe

    folder = str(tmp_path_factory.mktemp("tiny") / "tokenizer")
    train_bpe(tiny_texts, folder, vocab_size=400)
    return folder
