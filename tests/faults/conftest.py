"""Fixtures for the fault tests. `harness` and the scripts of `graphs/` are imported by their file's name."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [folder for folder in (str(HERE), str(HERE / "graphs")) if folder not in sys.path]

import diamond  # noqa: E402 (after its folder is on the path)
from harness import SOAK, Reference, Site, Sites  # noqa: E402

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 1 << 28
failed = pytest.StashKey[bool]()

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in `make test &`; the programs under test would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[failed] = item.stash.get(failed, False) or report.failed
    return report


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for a test that writes thousands of files: in memory if it may, kept on disk if the test fails."""
    if os.environ.get(SOAK) or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="ponente-faults-") as folder:
        yield Path(folder)
        if request.node.stash.get(failed, False):
            shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)


@pytest.fixture
def sites(root: Path) -> Iterator[Sites]:
    """Makes places to run a script in; whatever a test leaves running there is killed."""
    made: list[Site] = []

    def make(script: str, name: str = "site", prefix: Path | None = None) -> Site:
        made.append(Site(HERE / "graphs" / f"{script}.py", root / name, prefix))
        return made[-1]

    yield make
    for site in made:
        site.kill_everything()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What the diamond makes, and how long it takes, if nobody disturbs it."""
    site = Site(Path(diamond.__file__), tmp_path_factory.mktemp("undisturbed") / "site")
    began = time.monotonic()
    ended = site.run()
    seconds = time.monotonic() - began
    assert ended.code == 0, ended
    outputs = {step.name: site.published(step) for step in diamond.STEPS}
    assert all(outputs.values()), outputs
    site.expect_no_processes()
    return Reference(outputs, seconds)
