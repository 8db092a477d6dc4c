"""Commands about data: cache-dataset, data inspect, data stats."""

import argparse
import os
import sys
from contextlib import AbstractContextManager, nullcontext

from ponente.cli.command import add_command, log_to_terminal


def add_data_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente cache-dataset`, `data inspect` and `data stats`."""
    cache = add_command(
        commands, "cache-dataset", _cache_dataset, "tokenize the datasets of a config into token caches"
    )
    cache.add_argument("--config_path", help="a YAML config; a path or any fsspec URL")
    cache.add_argument("--workers", type=int, help="processes (default: one a core; 0: this one)")
    cache.add_argument("--address", "--cluster", dest="address", help="of a Ray cluster: HOST:6379, auto, local")
    for flag in ("--start_workers", "--auto_start_cluster"):
        cache.add_argument(flag, nargs="?", const="true", help="understood, and done without: nothing is to be started")
    cache.set_defaults(takes_overrides=True)
    cache.usage = "ponente cache-dataset --config_path CONFIG.yaml [--workers N] [--KEY.PATH VALUE ...]"
    cache.epilog = "Any key of the config may be given as a flag: --data.tokenizer gpt2, --data.cache_dir caches/"
    _add_looks(commands)


def _add_looks(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente data inspect` and `ponente data stats`."""
    data = add_command(commands, "data", _inspect_data, "look at the data of a training config")
    looks = data.add_subparsers(required=True, metavar="inspect|stats")
    inspect = add_command(
        looks, "inspect", _inspect_data, "show rows of any step as text, with document borders and masks"
    )
    inspect.add_argument("--step", type=int, default=0, help="of which step (default: %(default)s)")
    inspect.add_argument("--dataset", help="show only rows of this dataset")
    inspect.add_argument("--split", choices=("train", "validation"), default="train", help="(default: %(default)s)")
    inspect.add_argument("--rows", type=int, default=3, help="how many rows to show (default: %(default)s)")
    inspect.add_argument("--tokens", type=int, default=512, help="of each row; 0: all (default: %(default)s)")
    inspect.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: %(default)s)")
    stats = add_command(looks, "stats", _data_stats, "show sizes, lengths of documents and epochs of each dataset")
    for name, look in (("inspect", inspect), ("stats", stats)):
        look.add_argument("--config_path", help="a YAML training config; a path or any fsspec URL")
        look.set_defaults(takes_overrides=True)
        look.usage = f"ponente data {name} --config_path CONFIG.yaml [--KEY.PATH VALUE ...]"
        look.epilog = "Any key may be given as a flag: --trainer.train_batch_size 8. Caches that are missing are built."


def _cache_dataset(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.tokens.command import cache_datasets

    for flag in ("start_workers", "auto_start_cluster"):
        if getattr(options, flag) is not None:
            print(f"ponente: --{flag} is understood and done without: there is nothing to start", file=sys.stderr)
    with _cluster(options.address):
        for line in cache_datasets(options.config_path, options.overrides, workers=options.workers):
            print(line, flush=True)
    return 0


def _cluster(address: str | None) -> AbstractContextManager[None]:
    """The cluster that caches are built on, if one is named."""
    if address is None:
        return nullcontext()
    from ponente.cluster.ray.connection import connected

    return connected(address)


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
    log_to_terminal()
    for line in inspect(load_settings(options.config_path, options.overrides), options.step, look):
        print(line)
    return 0


def _data_stats(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.data.settings import load_settings
    from ponente.train.data.stats import stats

    log_to_terminal()
    for line in stats(load_settings(options.config_path, options.overrides)):
        print(line)
    return 0
