"""The live line, on a terminal of two dozen lines of Python; and log lines where there is no terminal."""

import contextlib
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console

from ponente.train.show import Progress, showing

CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal(io.StringIO):
    """Takes what is written; `screen` is what somebody would see."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        lines, row, column = [""], 0, 0
        for match in CONTROL.finditer(self.getvalue()):
            argument, command, control, text = match.groups()
            if text:
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif control == "\r":
                column = 0
            elif control == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif command == "A":
                row -= int(argument or 1)
            elif command == "K":
                lines[row] = "" if argument == "2" else lines[row][:column]
        return [line.rstrip() for line in lines]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture
def log(terminal: Terminal) -> Iterator[logging.Logger]:
    """A logger that writes to the terminal."""
    logger = logging.getLogger("winds")
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger
    logger.removeHandler(handler)


def console(terminal: Terminal, width: int = 60) -> Console:
    return Console(file=terminal, width=width, force_terminal=True, color_system=None)


def progress(step: int, loss: float = 3.0) -> Progress:
    return Progress(step=step, steps=10, loss=loss)


def test_one_line_is_drawn_again_and_the_last_stays(terminal: Terminal) -> None:
    with contextlib.closing(showing(10, console=console(terminal))) as show:
        assert terminal.screen == ["step 0/10 · starting"]
        for step in range(1, 4):
            show.update(progress(step))
    assert terminal.screen == ["step 3/10 · loss 3.000", ""]


def test_a_resumed_run_starts_at_its_step(terminal: Terminal) -> None:
    with contextlib.closing(showing(10, first_step=4, console=console(terminal))):
        assert terminal.screen == ["step 4/10 · starting"]


def test_logging_goes_above_the_line(terminal: Terminal, log: logging.Logger) -> None:
    with contextlib.closing(showing(10, console=console(terminal))) as show:
        log.info("compiled")
        assert terminal.screen == ["compiled", "step 0/10 · starting"]
        show.update(progress(10))
        log.info("two\nlines")
        assert terminal.screen == ["compiled", "two", "lines", "step 10/10 · loss 3.000"]
    log.info("after")
    assert terminal.screen == ["compiled", "two", "lines", "step 10/10 · loss 3.000", "after", ""]


def test_what_is_printed_goes_above_the_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    with contextlib.closing(showing(10, console=console(terminal))):
        print("printed [not markup]")
        print("windy", file=sys.stderr)
        print("without an end", end="")
    assert terminal.screen == ["printed [not markup]", "windy", "without an end", "step 0/10 · starting", ""]
    assert sys.stdout is terminal and sys.stderr is terminal


def test_a_handler_that_asks_for_standard_error_each_time_goes_above_the_line_too(
    terminal: Terminal, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    assert logging.lastResort is not None
    log.handlers = [logging.lastResort]
    with contextlib.closing(showing(10, console=console(terminal))):
        log.warning("a warning")
    assert terminal.screen == ["a warning", "step 0/10 · starting", ""]


def test_the_default_console_writes_above_its_own_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    with contextlib.closing(showing(10)):
        print("hello", file=sys.stderr)
    assert terminal.screen == ["hello", "step 0/10 · starting", ""]


def test_a_long_line_of_the_log_is_not_broken_and_a_long_live_line_is_cut(
    terminal: Terminal, log: logging.Logger
) -> None:
    text = "word " * 30 + "end"
    with contextlib.closing(showing(10, console=console(terminal, width=20))) as show:
        log.info(text)
        show.update(progress(10))
    assert terminal.screen == [text, "step 10/10 · loss 3…", ""]


def test_messages_of_many_threads_stay_whole(terminal: Terminal, log: logging.Logger) -> None:
    def talk(name: int) -> None:
        for number in range(20):
            log.info("thread %d message %d", name, number)

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    with contextlib.closing(showing(10, console=console(terminal))) as show:
        for thread in threads:
            thread.start()
        for step in range(1, 11):
            show.update(progress(step))
        for thread in threads:
            thread.join()
    expected = {f"thread {name} message {number}" for name in range(4) for number in range(20)}
    assert set(terminal.screen[:-2]) == expected
    assert terminal.screen[-2:] == ["step 10/10 · loss 3.000", ""]


def test_the_cursor_stays_visible_for_whoever_kills_the_run(terminal: Terminal) -> None:
    with contextlib.closing(showing(10, console=console(terminal))):
        shown, hidden = (terminal.getvalue().rfind(f"\x1b[?25{end}") for end in "hl")
        assert shown >= hidden


def test_close_may_be_called_twice(terminal: Terminal) -> None:
    show = showing(10, console=console(terminal))
    show.close()
    before = terminal.getvalue()
    show.close()
    assert terminal.getvalue() == before


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_without_a_terminal_the_first_steps_and_the_last_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with contextlib.closing(showing(10, console=Console(file=io.StringIO()))) as show:
        for step in range(1, 11):
            show.update(progress(step))
    assert [text.partition(" ·")[0] for text in logged(caplog)] == [f"step {step}/10" for step in (1, 2, 3, 10)]


def test_without_a_terminal_a_line_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    show = showing(1000, console=Console(file=io.StringIO()), log_seconds=0.0)
    for step in range(1, 8):
        show.update(Progress(step=step, steps=1000))
    assert len(logged(caplog)) == 7


def test_a_run_that_ends_early_says_how_far_it_came(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with contextlib.closing(showing(1000, console=Console(file=io.StringIO()))) as show:
        for step in range(1, 8):
            show.update(Progress(step=step, steps=1000))
    assert logged(caplog)[-1] == "step 7/1,000"


def test_a_dumb_terminal_gets_log_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(os.environ, "TERM", "dumb")
    with contextlib.closing(showing(10, console=console(terminal))) as show:
        show.update(progress(1))
    assert terminal.getvalue() == ""
    assert logged(caplog) == ["step 1/10 · loss 3.000"]
