"""The log of a run in a file, beside what the terminal shows. Secrets are masked."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ponente.store.redaction import Redactor
from ponente.store.text_log import open_log

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__(_FORMAT)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


@contextmanager
def logging_to(path: str, redactor: Redactor | None = None) -> Iterator[None]:
    """Appends to a file, `logs/RUN_ID.log` for instance, whatever is logged while the block runs.

    What Ponente logs is let pass from INFO on; other loggers stay as they are.
    """
    lines = io.TextIOWrapper(open_log(path), encoding="utf-8")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(_RedactingFormatter(redactor or Redactor.of_process(dict(os.environ), sys.argv)))
    root, ours = logging.getLogger(), logging.getLogger("ponente")
    before = ours.level
    if not ours.isEnabledFor(logging.INFO):
        ours.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(before)
        handler.close()
        lines.close()
