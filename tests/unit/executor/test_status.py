"""ponente status: what a run is doing, while it runs and after, as plain lines or drawn live in a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import waiting
from winds import winds

from ponente.config import UserError
from ponente.executor.manifest import Runs
from ponente.executor.outcome import RunOutcome
from ponente.executor.status import Phase, status_of

Runner = Callable[..., RunOutcome]
PATIENCE_SECONDS = 60.0
STATUS = [sys.executable, "-m", "ponente", "status"]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Held:
    """A run whose second step waits to be let go."""

    def __init__(self, folder: Path) -> None:
        self.prefix, self.gate = str(folder / "prefix"), folder / "gate"
        self.gate.mkdir()
        command = [sys.executable, waiting.__file__, "--prefix", self.prefix]
        environment = {**os.environ, "GATE": str(self.gate)}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        until((self.gate / "waiting").exists)

    def let_go(self) -> None:
        (self.gate / "go").touch()

    def end(self) -> int:
        self.let_go()
        self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path)
    yield held
    held.end()


def lines_of(*arguments: str) -> tuple[int, list[str]]:
    ended = subprocess.run([*STATUS, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.splitlines()


def words(lines: list[str]) -> list[list[str]]:
    """The first two words of each line, hashes left out."""
    return [[re.sub("-[0-9a-f]{8}$", "", word) for word in line.split()[:2]] for line in lines]


def test_a_running_run_is_shown_as_plain_lines_outside_a_terminal(held: Held) -> None:
    code, lines = lines_of("--prefix", held.prefix)
    assert code == 0
    assert words(lines[:3]) == [["done", "quick"], ["running", "waiting"], ["waiting", "last"]]
    assert re.search(r"\d+ s, 2/4 gates$", lines[1])
    assert lines[3] == f"run {Runs(held.prefix).names()[0]}: running; 1 done, 1 running, 1 waiting"


def test_a_finished_run_is_shown_with_how_long_each_step_took(held: Held) -> None:
    assert held.end() == 0
    code, lines = lines_of("--prefix", held.prefix)
    assert code == 0
    assert words(lines[:3]) == [["done", "quick"], ["done", "waiting"], ["done", "last"]]
    assert all(re.search(r"\d+\.\d s$", line) for line in lines[:3])
    assert lines[3].endswith(": ended; 3 done")


def test_follow_prints_each_change_until_the_run_ends(held: Held) -> None:
    command = [*STATUS, "--prefix", held.prefix, "--follow"]
    seen = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as following:
        assert following.stdout is not None
        for line in following.stdout:
            seen.append(line.rstrip("\n"))
            if line.startswith("waiting  last-"):
                held.let_go()
    assert following.returncode == 0
    told = words(seen)
    assert [phase for phase, name in told if name == "quick"] == ["done"]
    phases = [phase for phase, name in told if name == "waiting"]
    assert phases[0] == "running" and phases[-1] == "done"
    assert [phase for phase, name in told if name == "last"][-1] == "done"
    assert seen[-1].endswith(": ended; 3 done")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: list[str], *, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
            environment.pop(name, None)
        self._process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self._raw = b""

    @property
    def text(self) -> str:
        """What was drawn so far, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._raw.decode(errors="replace"))

    @property
    def raw(self) -> bytes:
        return self._raw

    def read_until(self, part: str) -> None:
        while part not in self.text:
            assert self._read(), f"ended without {part!r}: {self.text}"

    def read_to_the_end(self) -> int:
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(timeout=PATIENCE_SECONDS)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the other end was closed
            return False
        self._raw += data
        return bool(data)


def test_in_a_terminal_a_run_is_drawn_live_until_it_ends(held: Held) -> None:
    terminal = Terminal([*STATUS, "--prefix", held.prefix])
    terminal.read_until("1 done, 1 running, 1 waiting")
    terminal.read_until("2/4 gates")
    held.let_go()
    assert terminal.read_to_the_end() == 0
    assert re.search(r"run \S+: ended; 3 done", terminal.text)
    assert b"\x1b[" in terminal.raw, "it was drawn over, not printed again"


def test_a_run_with_more_steps_than_rows_shows_the_interesting_ones(held: Held) -> None:
    terminal = Terminal([*STATUS, "--prefix", held.prefix], rows=5)
    terminal.read_until("… and 2 more")
    assert re.search(r"running\s+waiting-", terminal.text)
    assert "quick-" not in terminal.text
    held.let_go()
    assert terminal.read_to_the_end() == 0


def test_once_prints_plain_lines_in_a_terminal_too(held: Held) -> None:
    terminal = Terminal([*STATUS, "--prefix", held.prefix, "--once"])
    assert terminal.read_to_the_end() == 0
    assert "\x1b" not in terminal.raw.decode()
    assert words(terminal.text.split("\r\n")[:3]) == [["done", "quick"], ["running", "waiting"], ["waiting", "last"]]


def test_a_failed_run_names_the_error_and_what_is_held_and_exits_with_1(run: Runner, prefix: str) -> None:
    run(*winds(ponente=-1))
    code, lines = lines_of("--prefix", prefix)
    assert code == 1
    assert words(lines[:3]) == [["done", "winds/levante"], ["failed", "winds/ponente"], ["held", "winds/tramontana"]]
    assert "ValueError: found force=-1; a wind cannot blow backwards" in lines[1]
    assert lines[2].endswith("what it needs failed")
    assert lines[3].endswith(": ended; 1 done, 1 failed, 1 held")


def phases(prefix: str, run: str | None = None) -> dict[str, Phase]:
    return {re.sub("-[0-9a-f]{8}$", "", step.name): step.phase for step in status_of(prefix, run).steps}


def test_hits_are_told_from_what_the_run_did_itself(run: Runner, prefix: str) -> None:
    run(winds()[0])
    run(*winds())
    assert phases(prefix) == {
        "winds/levante": Phase.HIT,
        "winds/ponente": Phase.DONE,
        "winds/tramontana": Phase.DONE,
    }


def test_the_newest_run_is_shown_unless_another_is_named(run: Runner, prefix: str) -> None:
    run(winds()[0])
    run(*winds())
    newer, older = Runs(prefix).names()
    assert status_of(prefix).manifest.run == newer
    assert status_of(prefix, older).manifest.run == older
    assert list(phases(prefix, older)) == ["winds/levante"]


def test_a_run_that_is_not_there_is_refused_with_those_there_are(run: Runner, prefix: str) -> None:
    with pytest.raises(UserError, match=r"found no run under .*; run an experiment first, or give its --prefix"):
        status_of(prefix)
    run(winds()[0])
    with pytest.raises(UserError, match=f"found no run 'x'; it has {Runs(prefix).names()[0]}"):
        status_of(prefix, "x")
