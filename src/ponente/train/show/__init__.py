"""A training run in the terminal and in a log file."""

from ponente.train.show.live import NoShow, Show, showing
from ponente.train.show.log_file import logging_to
from ponente.train.show.progress import Progress

__all__ = ["NoShow", "Progress", "Show", "logging_to", "showing"]
