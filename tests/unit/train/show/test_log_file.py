"""The log of a run in a file."""

import logging
import time
from pathlib import Path

import pytest

from ponente.store.redaction import Redactor
from ponente.store.volume import volume_of
from ponente.train.show import logging_to

logger = logging.getLogger("winds.log_file")


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_what_is_logged_in_the_block_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.log"
    logger.info("before")
    with logging_to(str(path)):
        logger.info("west wind, %s", "añil")
    logger.info("after")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert line.endswith("INFO winds.log_file: west wind, añil")


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with logging_to(str(tmp_path / "run.log")):
            logger.info(text)
    assert [line.rpartition(" ")[2] for line in (tmp_path / "run.log").read_text().splitlines()] == ["first", "second"]


def test_an_error_is_logged_with_its_traceback_and_leaves_no_handler_behind(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with pytest.raises(ZeroDivisionError), logging_to(str(tmp_path / "run.log")):
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("failed")
        raise ZeroDivisionError
    assert "ValueError: odd" in (tmp_path / "run.log").read_text()
    assert logging.getLogger().handlers == before


def test_a_log_in_a_bucket_is_sent_as_it_grows(bucket: str) -> None:
    path = f"{bucket}/logs/run.log"
    for message in ("first", "second"):
        with logging_to(path):
            logging.getLogger("ponente.x").info("%s life", message)
            until = time.monotonic() + 30
            while not (volume_of(path).exists(path) and f"{message} life" in volume_of(path).read(path).decode()):
                assert time.monotonic() < until
                time.sleep(0.02)
            logging.getLogger("ponente.x").info("its end")
    whole = volume_of(path).read(path).decode().splitlines()
    assert [line.rpartition(": ")[2] for line in whole] == ["first life", "its end", "second life", "its end"]


def test_secrets_are_masked(tmp_path: Path) -> None:
    with logging_to(str(tmp_path / "run.log"), Redactor(["hush-hush-1"])):
        logger.info("key hush-hush-1, password=open-sesame")
    text = (tmp_path / "run.log").read_text()
    assert "hush" not in text and "sesame" not in text and "***" in text
