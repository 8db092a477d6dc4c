"""What a run is asked to do: the flags of every experiment script."""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from ponente.cluster.address import cluster_address


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """What a run is asked to do; each is a flag of every experiment script."""

    prefix: str | None = None
    dry_run: bool = False
    run_only: list[str] = field(default_factory=list)
    force: list[str] = field(default_factory=list)
    force_run_failed: bool = False
    max_concurrent: int | None = None
    max_cost: float | None = None
    rates: str | None = None
    launcher: str = "subprocess"
    cluster: str | None = None


def parse_options(argv: Sequence[str] | None, description: str | None = None) -> ExecutorOptions:
    """The flags of an experiment script."""
    summary = (description or "").strip().partition("\n")[0] or None
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    add_options(parser)
    flags = with_underscores(sys.argv[1:] if argv is None else argv)
    options, unknown = parser.parse_known_args(flags)
    if unknown:
        parser.error(unknown_flag(parser, unknown))
    return ExecutorOptions(**vars(options))


def with_underscores(argv: Sequence[str]) -> list[str]:
    """Flags as they are declared: `--dry-run` is `--dry_run`; what follows `--` is not ours."""
    end = argv.index("--") if "--" in argv else len(argv)
    ours = [
        re.sub(r"^--[^=]+", lambda flag: "--" + flag.group()[2:].replace("-", "_"), argument)
        if argument[:2] == "--"
        else argument
        for argument in argv[:end]
    ]
    return [*ours, *argv[end:]]


def unknown_flag(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """What to say of arguments that the parser does not know: the nearest that it does."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
    return f"found {' '.join(unknown)}; did you mean {near[0]}?" if near else f"found {' '.join(unknown)}; see --help"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the executor's flags."""
    switch = {"nargs": "?", "const": True, "default": False, "type": _yes_or_no, "metavar": "true|false"}
    add = parser.add_argument
    add("--prefix", help="where outputs and records go (else PONENTE_PREFIX, else ./ponente-runs)")
    add("--dry_run", help="print the plan and its price; run and write nothing", **switch)  # type: ignore[arg-type]
    add("--run_only", nargs="+", default=[], metavar="REGEX", help="only steps whose name matches, and what they need")
    add("--force", nargs="+", default=[], metavar="REGEX", help="run matching steps again although they are done")
    add("--force_run_failed", help="try again steps that failed for good in an earlier run", **switch)  # type: ignore[arg-type]
    add(
        "--max_concurrent", type=_positive, metavar="N", help="steps at the same time (default: cores; in the driver 1)"
    )
    add("--max_cost", type=_amount, metavar="X", help="refuse to run if the estimated cost is above X")
    add("--rates", metavar="YAML", help="rate card that prices estimates (else PONENTE_RATES)")
    add(
        "--launcher",
        choices=["subprocess", "driver"],
        default="subprocess",
        help="each step in its own process (default), or in this one",
    )
    add(
        "--cluster",
        metavar="ADDRESS",
        default=cluster_address(),
        help="run steps on a Ray cluster: HOST:6379, auto, or local to try it here (else PONENTE_CLUSTER)",
    )


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "false", "no", "0"):
        return text.lower() in ("true", "yes", "1")
    raise argparse.ArgumentTypeError(f"found {text!r}, needed true or false")


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not amount >= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, needed a number not below 0")
    return amount


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, needed a number of at least 1")
    return int(text)
