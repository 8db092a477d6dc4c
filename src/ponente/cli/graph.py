"""Commands about graphs of steps: plan, run, status, why, diff, adopt, gc."""

import argparse
import sys
import time

from ponente.cli.command import add_command
from ponente.config.errors import RefusedError


def add_graph_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente plan`, `run`, `status`, `why`, `diff`, `adopt` and `gc`."""
    from ponente.executor.options import add_options

    for name, command, summary in (
        ("plan", _plan, "print what a script would run, why, and what it would cost; run and write nothing"),
        ("run", _run, "run a script's steps, as `python SCRIPT` does"),
    ):
        sub = add_command(commands, name, command, summary)
        sub.add_argument("script", help="an experiment: a Python file that calls executor_main")
        add_options(sub)

    status = add_command(commands, "status", _status, "show a run: live in a terminal, as plain lines elsewhere")
    status.add_argument("run", nargs="?", help="a run's name (default: the newest)")
    status.add_argument(
        "--follow", action="store_true", help="outside a terminal too, print changes until the run ends"
    )
    status.add_argument("--once", action="store_true", help="in a terminal too, print plain lines once")

    why = add_command(
        commands, "why", _why, "say what state a step is in and which fields changed since it last differed"
    )
    why.add_argument("step", help="a step: its name, the end of its name, name-hash, or folder")

    diff = add_command(commands, "diff", _diff, "name every field in which two steps (or all steps of two runs) differ")
    diff.add_argument("first", help="a step or a run")
    diff.add_argument("second", help="a step or a run")

    adopt = add_command(commands, "adopt", _adopt, "record that an old step's result is also a new step's")
    adopt.add_argument("old", help="a committed step")
    adopt.add_argument("new", help="the step that is to have its result")
    adopt.add_argument("--reason", required=True, help="why the two are equivalent")
    gc = add_command(commands, "gc", _gc, "list what nobody needs under a prefix, and with --delete remove it")
    gc.add_argument(
        "--keep", nargs="+", metavar="SCRIPT", help="outputs that these experiments do not reach may go too"
    )
    gc.add_argument(
        "--older_than", default="7d", help="state that nothing was kept of goes after that (default: %(default)s)"
    )
    gc.add_argument("--delete", action="store_true", help="remove what is listed")

    for sub in (status, why, diff, adopt, gc):
        sub.add_argument("--prefix", help="where outputs and records are (else PONENTE_PREFIX, else ./ponente-runs)")
    for sub in (why, diff, adopt):
        sub.add_argument("--script", help="an experiment whose steps may be named although they have not run yet")


def _plan(options: argparse.Namespace, arguments: list[str]) -> int:
    return _run_script(options.script, [*_without(arguments[1:], options.script), "--dry_run"])


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    return _run_script(options.script, _without(arguments[1:], options.script))


def _run_script(script: str, arguments: list[str]) -> int:
    from ponente.executor.script import run_script

    run_script(script, arguments)
    return 0


def _without(arguments: list[str], script: str) -> list[str]:
    position = arguments.index(script)
    return arguments[:position] + arguments[position + 1 :]


def _status(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.executor.status import Phase, status_of
    from ponente.store.paths import resolve_prefix

    prefix = resolve_prefix(options.prefix)
    status = status_of(prefix, options.run)
    run = status.manifest.run
    if sys.stdout.isatty() and not options.once:
        from ponente.executor.live import follow

        status = follow(lambda: status_of(prefix, run))
    else:
        _print_status(prefix, run, follow=options.follow)
        status = status_of(prefix, run)
    return 1 if status.count(Phase.FAILED) else 0


def _print_status(prefix: str, run: str, *, follow: bool) -> None:
    from ponente.executor.status import status_of

    printed: dict[str, str] = {}
    while True:
        status = status_of(prefix, run)
        for step in status.steps:
            if printed.get(step.name) != str(step):
                printed[step.name] = str(step)
                print(step, flush=True)
        if not (follow and status.is_running):
            print(status.headline, flush=True)
            return
        time.sleep(0.5)


def _why(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.executor.inquiry import inquire

    print(inquire(options.prefix, options.script).why(options.step), end="")
    return 0


def _diff(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.executor.inquiry import inquire

    print(inquire(options.prefix, options.script).diff(options.first, options.second), end="")
    return 0


def _adopt(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.executor.inquiry import inquire

    print(inquire(options.prefix, options.script).adopt(options.old, options.new, options.reason), end="")
    return 0


def _gc(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.config.durations import seconds_of
    from ponente.executor.garbage import remove, survey
    from ponente.executor.script import graphs_of_scripts
    from ponente.store.paths import resolve_prefix
    from ponente.store.volume import volume_of

    older_than = 0.0 if options.older_than == "0" else seconds_of(options.older_than, "--older_than") or 0.0
    keep = None if options.keep is None else graphs_of_scripts(options.keep)
    prefix = resolve_prefix(options.prefix)
    if not volume_of(prefix).is_folder(prefix):
        raise RefusedError(f"found no prefix {prefix}; needed one under which steps have run. Give --prefix.")
    found = survey(prefix, keep, older_than)
    if not options.delete:
        print(found)
        if found.garbage:
            print("nothing was removed; --delete does it")
        return 0
    gone = []
    for one in remove(found):
        gone.append(one)
        print(f"removed {one}", flush=True)
    left = len(found.garbage) - len(gone)
    print(f"{len(gone)} folders removed" + (f", {left} left alone while steps are in work" if left else ""))
    return 0
