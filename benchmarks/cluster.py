"""What Ray costs: token caches and trivial shards by two workers of a Ray cluster, and by two processes without it.

Run:  .venv/bin/python benchmarks/cluster.py [--shards 10000] [--repeats 3]    (tokenize.py --cluster runs it too)
In:   the text of corpus.py, and the GPT-2 tokenizer of ../shared/data; a Ray cluster of two cores is started here.
Out:  a table, and last a line of JSON: tokens_over_local (our text bytes a second on the cluster / without it, after
      start-up: of the corpus thrice over, less once), microseconds a shard of both, and their ratio.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from corpus import Unavailable, note, prepared_corpus, shared_archive

WORKERS = 2
WANTED = 0.85
CLUSTER = "PONENTE_CLUSTER"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3, help="the median counts (default: %(default)s)")
    run(parser.parse_args())


def run(flags: argparse.Namespace) -> None:
    """Measures, and prints."""
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": WORKERS, "object_store_memory": 100 << 20})
    try:
        with tempfile.TemporaryDirectory(prefix="ponente-bench-") as folder:
            figures = {**tokens(Path(folder), cluster.address, flags), **shards(Path(folder), cluster.address, flags)}
    except Unavailable as error:
        sys.exit(f"Unavailable: {error}")
    finally:
        cluster.shutdown()
    for name, figure in figures.items():
        wanted = f"   (wanted: at least {WANTED})" if name == "tokens_over_local" else ""
        print(f"  {name:<32}{figure:>10.3f}{wanted}")
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))


def tokens(folder: Path, address: str, flags: argparse.Namespace) -> dict[str, float]:
    """Builds of a cache in turn, on the cluster and without it: of the corpus thrice over, less once."""
    tokenizer = shared_archive("tokenizers") / "gpt2"
    files = {times: links(prepared_corpus("gz").shards, folder / f"corpus-{times}", times) for times in (1, 3)}
    ways: dict[str, list[str]] = {"local": [], "cluster": ["--cluster", address]}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(flags.repeats):
        for way, extra in ways.items():
            note(f"tokens, round {number + 1} of {flags.repeats}: {way}")
            few, many = (build(folder, files[times], tokenizer, extra) for times in (1, 3))
            seconds[way].append(many - few)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    return {
        "tokens_local_seconds": medians["local"],
        "tokens_cluster_seconds": medians["cluster"],
        "tokens_over_local": medians["local"] / medians["cluster"],
    }


def links(shards: list[Path], folder: Path, times: int) -> list[str]:
    """Links to the shards, each under `times` names."""
    folder.mkdir()
    made = []
    for number in range(times):
        for shard in shards:
            link = folder / f"{number}-{shard.name}"
            link.symlink_to(shard)
            made.append(str(link))
    return made


def build(folder: Path, files: list[str], tokenizer: Path, extra: list[str]) -> float:
    """Seconds of `ponente cache-dataset` as a whole."""
    cache, config = folder / "cache", folder / "config.yaml"
    shutil.rmtree(cache, ignore_errors=True)
    config.write_text(json.dumps({"data": {"tokenizer": str(tokenizer), "cache_dir": str(cache), "train_urls": files}}))
    command = [sys.executable, "-m", "ponente", "cache-dataset", "--config_path", str(config)]
    began = time.perf_counter()
    done = subprocess.run([*command, "--workers", str(WORKERS), *extra], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began


def shards(folder: Path, address: str, flags: argparse.Namespace) -> dict[str, float]:
    """Trivial shards, with workers that have begun: the time of a few is taken off."""
    ways: dict[str, Callable[[], dict[str, str]]] = {"local": dict, "cluster": lambda: {CLUSTER: address}}
    microseconds = {}
    for way, variables in ways.items():
        note(f"{flags.shards} shards: {way}")
        few, many = (mapped(folder / f"{way}-{count}", count, variables()) for count in (10, flags.shards))
        microseconds[way] = (many - few) / (flags.shards - 10) * 1e6
    return {
        "shard_local_microseconds": microseconds["local"],
        "shard_cluster_microseconds": microseconds["cluster"],
        "shard_cluster_over_local": microseconds["cluster"] / microseconds["local"],
    }


def mapped(folder: Path, count: int, variables: dict[str, str]) -> float:
    command = [sys.executable, str(Path(__file__).with_name("cluster_peers") / "trivial.py"), str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return float(done.stdout)


if __name__ == "__main__":
    main()
