"""The command `ponente`: a thin layer that parses, calls a room, and prints.

Rooms are imported inside functions, so that `ponente --help` is quick.
"""

import argparse
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

from ponente import __version__
from ponente.config.errors import RefusedError, UserError

Command = Callable[[argparse.Namespace, list[str]], int]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line; exits with its code."""
    from ponente.executor.options import unknown_flag, with_underscores

    arguments = with_underscores(sys.argv[1:] if argv is None else argv)
    options, unknown = build_parser().parse_known_args(arguments)
    if unknown and not options.takes_overrides:
        options.parser.error(unknown_flag(options.parser, unknown))
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
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            print(
                f"ponente: found that {error.filename or 'a file'} cannot be used ({error.strerror}); needed "
                "a place of your own. Give another, such as --data.cache_dir or --prefix.",
                file=sys.stderr,
            )
            sys.exit(2)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"ponente: {error}\nMake room and run the command again: what is done stays.", file=sys.stderr)
        code = 1
    sys.exit(code)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from ponente.executor.options import add_options

    parser = argparse.ArgumentParser(
        prog="ponente", description="Language models in the open, as one reproducible graph of Python steps."
    )
    parser.add_argument("--version", action="version", version=f"ponente {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, summary in (
        ("plan", _plan, "print what a script would run, why, and what it would cost; run and write nothing"),
        ("run", _run, "run a script's steps, as `python SCRIPT` does"),
    ):
        sub = _add(commands, name, command, summary)
        sub.add_argument("script", help="an experiment: a Python file that calls executor_main")
        add_options(sub)

    status = _add(commands, "status", _status, "show a run: live in a terminal, as plain lines elsewhere")
    status.add_argument("run", nargs="?", help="a run's name (default: the newest)")
    status.add_argument(
        "--follow", action="store_true", help="outside a terminal too, print changes until the run ends"
    )
    status.add_argument("--once", action="store_true", help="in a terminal too, print plain lines once")

    why = _add(commands, "why", _why, "say what state a step is in and which fields changed since it last differed")
    why.add_argument("step", help="a step: its name, the end of its name, name-hash, or folder")

    diff = _add(commands, "diff", _diff, "name every field in which two steps (or all steps of two runs) differ")
    diff.add_argument("first", help="a step or a run")
    diff.add_argument("second", help="a step or a run")

    adopt = _add(commands, "adopt", _adopt, "record that an old step's result is also a new step's")
    adopt.add_argument("old", help="a committed step")
    adopt.add_argument("new", help="the step that is to have its result")
    adopt.add_argument("--reason", required=True, help="why the two are equivalent")

    cache = _add(commands, "cache-dataset", _cache_dataset, "tokenize the datasets of a config into token caches")
    cache.add_argument("--config_path", help="a YAML config; a path or any fsspec URL")
    cache.add_argument("--workers", type=int, help="processes (default: one a core; 0: this one)")
    cache.add_argument("--address", "--cluster", dest="address", help="of a Ray cluster (not yet)")
    for flag in ("--start_workers", "--auto_start_cluster"):
        cache.add_argument(flag, nargs="?", const="true", help="understood, and done without: nothing is to be started")
    cache.set_defaults(takes_overrides=True)
    cache.usage = "ponente cache-dataset --config_path CONFIG.yaml [--workers N] [--KEY.PATH VALUE ...]"
    cache.epilog = "Any key of the config may be given as a flag: --data.tokenizer gpt2, --data.cache_dir caches/"

    _add_data(commands)
    _add_models(commands)

    for sub in (status, why, diff, adopt):
        sub.add_argument("--prefix", help="where outputs and records are (else PONENTE_PREFIX, else ./ponente-runs)")
    for sub in (why, diff, adopt):
        sub.add_argument("--script", help="an experiment whose steps may be named although they have not run yet")
    return parser


def _add_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente data inspect` and `ponente data stats`."""
    data = _add(commands, "data", _inspect_data, "look at the data of a training config")
    looks = data.add_subparsers(required=True, metavar="inspect|stats")
    inspect = _add(looks, "inspect", _inspect_data, "show rows of any step as text, with document borders and masks")
    inspect.add_argument("--step", type=int, default=0, help="of which step (default: %(default)s)")
    inspect.add_argument("--dataset", help="show only rows of this dataset")
    inspect.add_argument("--split", choices=("train", "validation"), default="train", help="(default: %(default)s)")
    inspect.add_argument("--rows", type=int, default=3, help="how many rows to show (default: %(default)s)")
    inspect.add_argument("--tokens", type=int, default=512, help="of each row; 0: all (default: %(default)s)")
    inspect.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: %(default)s)")
    stats = _add(looks, "stats", _data_stats, "show sizes, lengths of documents and epochs of each dataset")
    for name, look in (("inspect", inspect), ("stats", stats)):
        look.add_argument("--config_path", help="a YAML training config; a path or any fsspec URL")
        look.set_defaults(takes_overrides=True)
        look.usage = f"ponente data {name} --config_path CONFIG.yaml [--KEY.PATH VALUE ...]"
        look.epilog = "Any key may be given as a flag: --trainer.train_batch_size 8. Caches that are missing are built."


def _add_models(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente train`, `eval`, `export` and `sample`."""
    for name, command, summary, more in (
        ("train", _train, "train a language model, or go on with a run that was stopped", ""),
        ("eval", _eval, "evaluate a checkpoint or a Hugging Face model on validation sets", " --checkpoint_path STEP"),
        (
            "export",
            _export,
            "write a checkpoint as a Hugging Face folder",
            " --checkpoint_path STEP --output_dir FOLDER",
        ),
    ):
        sub = _add(commands, name, command, summary)
        sub.add_argument("--config_path", help="a YAML training config; a path or any fsspec URL")
        sub.set_defaults(takes_overrides=True)
        sub.usage = f"ponente {name} --config_path CONFIG.yaml{more} [--KEY.PATH VALUE ...]"
        sub.epilog = "Any key may be given as a flag: --trainer.num_train_steps 100, --optimizer.learning_rate 1e-3"
        if name == "train":
            _add_estimate(sub)
    sample = _add(commands, "sample", _sample, "write text with a checkpoint or a Hugging Face model")
    sample.add_argument(
        "--model", required=True, help="a checkpoint, a run's checkpoints, a Hugging Face folder or name"
    )
    sample.add_argument(
        "--prompt", action="append", default=[], help="a text to go on with; may be given several times"
    )
    sample.add_argument("--max_new_tokens", type=int, help="(default: 256, or as many as the model has room for)")
    sample.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest (default: %(default)s)")
    sample.add_argument("--top_k", type=int, help="draw from the k likeliest tokens only")
    sample.add_argument("--top_p", type=float, help="draw from the likeliest that reach this probability together")
    sample.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    sample.add_argument("--tokenizer", help="instead of the model's own")


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, command: Command, summary: str
) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    sub.set_defaults(command=command, parser=sub, takes_overrides=False)
    return sub


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


def _cache_dataset(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.tokens.command import cache_datasets

    if options.address is not None:
        raise RefusedError(
            f"found --address (or --cluster) {options.address}; not yet: a cache is built on this machine. "
            "Leave the flag out."
        )
    for flag in ("start_workers", "auto_start_cluster"):
        if getattr(options, flag) is not None:
            print(f"ponente: --{flag} is understood and done without: there is nothing to start", file=sys.stderr)
    for line in cache_datasets(options.config_path, options.overrides, workers=options.workers):
        print(line, flush=True)
    return 0


def _inspect_data(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.data.inspect import Look, inspect
    from ponente.train.data.settings import load_settings

    wants_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    has_color = wants_color if options.color == "auto" else options.color == "always"
    look = Look(
        rows=options.rows,
        tokens=options.tokens,
        dataset=options.dataset,
        split=options.split,
        has_color=has_color,
    )
    _log_to_terminal()
    for line in inspect(load_settings(options.config_path, options.overrides), options.step, look):
        print(line)
    return 0


def _log_to_terminal() -> None:
    """Has what the rooms say of their work on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ponente.train").setLevel(logging.INFO)


def _data_stats(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.data.settings import load_settings
    from ponente.train.data.stats import stats

    _log_to_terminal()
    for line in stats(load_settings(options.config_path, options.overrides)):
        print(line)
    return 0


def _add_estimate(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--estimate",
        metavar="HARDWARE",
        nargs="?",
        const="",
        help="print memory, hours and cost, and do not train: on hardware that need not be there, such as 8xh100 or "
        "v5p-128, or on these devices",
    )
    train.add_argument("--mfu", type=float, help="for --estimate: the share of the peak that is reached (default: 0.5)")
    train.add_argument("--price", type=float, help="for --estimate: dollars for an hour of one device")


def _estimate(options: argparse.Namespace) -> int:
    from ponente.train.config import load_train_config
    from ponente.train.estimate import MFU, estimate_lines

    mfu = MFU if options.mfu is None else options.mfu
    if not 0 < mfu <= 1:
        raise RefusedError(f"found --mfu {mfu}; needed a share of the peak, above 0 and up to 1, such as 0.4.")
    config = load_train_config(options.config_path, options.overrides).config
    for line in estimate_lines(config, options.estimate, mfu=mfu, price=options.price):
        print(line, flush=True)
    return 0


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.estimate is not None:
        return _estimate(options)
    if options.mfu is not None or options.price is not None:
        raise RefusedError("found --mfu or --price without --estimate; needed both. Add --estimate, or remove them.")
    from ponente.train.memory import keep_memory

    keep_memory()  # before anything that starts a thread
    from ponente.experiment.training import train_lm
    from ponente.train.config import load_train_config

    _log_to_terminal()
    config = load_train_config(options.config_path, options.overrides).config
    is_first = config.trainer.distributed.found(os.environ).is_first
    if not is_first:  # its log file has the rest
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    result = train_lm(config)
    if not is_first:
        return 0
    for name, value in result.metrics.items():
        if name.endswith(("/loss", "/bpb")):
            print(f"{name}: {value:.4f}")
    print(f"checkpoint: {result.checkpoint}")
    print(f"metrics, record: {result.folder}")
    if result.exported is not None:
        print(f"Hugging Face model: {result.exported}")
    print(f"to write with it: ponente sample --model {result.checkpoint} --prompt '...'")
    return 0


def _eval(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.memory import keep_memory

    keep_memory()
    from ponente.evaluate.command import evaluate_saved

    _log_to_terminal()
    for name, value in evaluate_saved(options.config_path, options.overrides).items():
        print(f"{name}: {value:.6g}")
    return 0


def _export(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.export_command import export_checkpoint

    _log_to_terminal()
    print(export_checkpoint(options.config_path, options.overrides))
    return 0


def _sample(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.generate.command import sample
    from ponente.generate.sampling import SamplingConfig

    sampling = SamplingConfig(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
    )
    prompts = options.prompt or [""]
    shown = None
    for number, piece in sample(options.model, prompts, sampling, tokenizer_name=options.tokenizer):
        if number != shown:
            print(("" if shown is None else "\n\n") + prompts[number], end="")
            shown = number
        print(piece, end="", flush=True)
    print(prompts[0] if shown is None else "")  # of a text that ended at once there is no piece
    return 0
