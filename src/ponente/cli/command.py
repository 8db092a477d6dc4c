"""How a command is added to the parser, and what all commands share."""

import argparse
import logging
import sys
from collections.abc import Callable

Command = Callable[[argparse.Namespace, list[str]], int]


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, command: Command, summary: str
) -> argparse.ArgumentParser:
    """Adds a command with its summary; the parser of its flags."""
    sub: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    sub.set_defaults(command=command, parser=sub, takes_overrides=False)
    return sub


def log_to_terminal() -> None:
    """Has what the rooms say of their work on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ponente.train").setLevel(logging.INFO)
