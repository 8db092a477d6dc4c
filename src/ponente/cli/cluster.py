"""Commands about Ray clusters: submit, list, logs, stop."""

import argparse
import os
import sys
from pathlib import Path

from ponente.cli.command import add_command
from ponente.config.errors import RefusedError

_ADDRESS = "RAY_API_SERVER_ADDRESS"  # Ray's own
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"


def add_cluster_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente cluster submit`, `list`, `logs` and `stop`."""
    cluster = add_command(commands, "cluster", _list, "run programs on a Ray cluster, and look at them")
    verbs = cluster.add_subparsers(required=True, metavar="submit|list|logs|stop")
    submit = add_command(verbs, "submit", _submit, "ship the working tree, run a command there, follow its log")
    for flags in (("--env_vars",), ("-e",)):
        submit.add_argument(
            *flags,
            dest="variables",
            nargs=2,
            action="append",
            metavar=("NAME", "VALUE"),
            default=[],
            help="a variable for the command and its steps; its value is in none of our records",
        )
    submit.add_argument("--no_wait", action="store_true", help="print the job's name and leave it to itself")
    submit.add_argument("--working_dir", default=".", help="the tree that is shipped (default: %(default)s)")
    submit.add_argument("words", nargs="*", metavar="-- COMMAND", help="such as: -- python experiments/x.py")
    submit.usage = "ponente cluster submit [--address URL] [-e NAME VALUE] [--no_wait] -- COMMAND ..."
    jobs = add_command(verbs, "list", _list, "the jobs of the cluster")
    logs = add_command(verbs, "logs", _logs, "what a job has said")
    logs.add_argument("--follow", action="store_true", help="until it ends")
    stop = add_command(verbs, "stop", _stop, "ask a job to end; its steps are asked as well")
    for sub in (logs, stop):
        sub.add_argument("job", help="a job's name, as `ponente cluster list` shows it")
    for sub in (submit, jobs, logs, stop):
        sub.add_argument("--address", help=f"of the cluster's job server (else {_ADDRESS}, else {_DEFAULT_ADDRESS})")


def _submit(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.cluster.ray.submit import Jobs

    if not options.words:
        raise RefusedError("found no command to run; needed one after --, such as: -- python experiments/x.py")
    tree = Path(options.working_dir).resolve()
    if not tree.is_dir():
        raise RefusedError(f"found no folder {tree}; needed the working tree that is to be shipped")
    jobs = Jobs(_address(options))
    name = jobs.submit(options.words, dict(options.variables), tree)
    print(f"job {name}", file=sys.stderr, flush=True)
    if options.no_wait:
        print(name)
        return 0
    try:
        return jobs.follow(name, _write)
    except KeyboardInterrupt:
        at = f" --address {options.address}" if options.address else ""
        print(f"\nthe job goes on: ponente cluster logs {name}{at} --follow, or stop {name}{at}", file=sys.stderr)
        return 130


def _list(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.cluster.ray.submit import Jobs

    for job in Jobs(_address(options)).jobs():
        print(f"{job.name}  {job.status:<10}{job.entrypoint}")
    return 0


def _logs(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.cluster.ray.submit import Jobs

    jobs = Jobs(_address(options))
    if options.follow and not jobs.job(options.job).is_over:
        return jobs.follow(options.job, _write)
    _write(jobs.log(options.job))
    return 0


def _stop(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.cluster.ray.submit import Jobs

    asked = Jobs(_address(options)).stop(options.job)
    print(f"asked {options.job} to end" if asked else f"{options.job} has ended")
    return 0


def _address(options: argparse.Namespace) -> str:
    return options.address or os.environ.get(_ADDRESS) or _DEFAULT_ADDRESS


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
