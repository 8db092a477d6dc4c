"""The command `ponente`: a thin layer that parses, calls a room, and prints.

Rooms are imported inside functions, so that `ponente --help` is quick.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from ponente import __version__
from ponente.cli.cluster import add_cluster_commands
from ponente.cli.data import add_data_commands
from ponente.cli.graph import add_graph_commands
from ponente.cli.models import add_model_commands
from ponente.config.errors import UserError


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line; exits with its code."""
    from ponente.executor.options import unknown_flag, with_underscores

    arguments = with_underscores(sys.argv[1:] if argv is None else argv)
    options, unknown = build_parser().parse_known_args(arguments)
    if unknown and not options.takes_overrides:
        script = getattr(options, "script", None)
        own = f"; flags of {script}'s own are for python {script}" if script else ""
        options.parser.error(unknown_flag(options.parser, unknown) + own)
    options.overrides = unknown
    try:
        code = options.command(options, arguments)
    except KeyboardInterrupt:
        print("ponente: stopped; what is done stays, and the same command goes on", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except UserError as error:
        print(f"ponente: {error}", file=sys.stderr)
        code = 2
    except OSError as error:
        from ponente.store.trouble import sentence_of

        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"ponente: {sentence}", file=sys.stderr)
        code = 2 if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else 1
    sys.exit(code)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="ponente", description="Language models in the open, as one reproducible graph of Python steps."
    )
    parser.add_argument("--version", action="version", version=f"ponente {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_graph_commands(commands)
    add_data_commands(commands)
    add_model_commands(commands)
    add_cluster_commands(commands)
    return parser
