"""Where the milliseconds of a step go: the kernels of a few steps of `ponente train`, by kind and one by one.

Run:  python benchmarks/h200/kernels.py [CASE] [--longest 40] [--text FILES] [--tokenizers FOLDER]      (needs a GPU)
Out:  milliseconds a step of each kind of kernel and of the longest operations, with how often each runs and the part of
      the program that it comes from; what the GPU was idle between them; and last a line of JSON with the kinds.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import train
from traced import Ran, read

FIRST, STEPS = 8, 3  # of the profile
SHORT = 0.01  # a gap in milliseconds, as one kernel follows another
KINDS = {  # the first pattern that a kernel's name or its operation matches
    "copies and zeros": r"^Mem|memcpy|memset|^copy|^wrapped_copy",
    "attention": r"cudnn|flash|sdpa|fmha",
    "products": r"nvjet|gemm|cublas|cutlass|xmma|splitK",
    "our kernels": r"mixed|weighed|products_of_few|swiglu|rms_norm_gradients|loss_slopes|log_normalizer",
    "fusions with reductions": r"reduc|input_.*fusion",
    "other fusions": r"",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", default="dclm1b", choices=list(train.CASES))
    parser.add_argument("--longest", type=int, default=40)
    train.add_sources(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponente-kernels-") as folder:
        site = train.Site(Path(folder), train.text_files(options), Path(options.tokenizers))
        kernels = list(read(profile(site, options.case)))
    tell(kernels, options.longest)


def profile(site: train.Site, name: str) -> Path:
    """The profile of a run."""
    case, config = train.CASES[name], site.folder / f"{name}.yaml"
    config.write_text(site.config(name, case))
    flags = {
        "num_train_steps": FIRST + STEPS + 1,
        "checkpointer.keep": "[]",
        "profiler.enabled": "true",
        "profiler.start_step": FIRST,
        "profiler.num_steps": STEPS,
    }
    given = [word for key, value in flags.items() for word in (f"--trainer.{key}", str(value))]
    command = [sys.executable, "-m", "ponente", "train", "--config_path", str(config), *case.flags, *given]
    environment = {**os.environ, "PYTHONPATH": f"{train.SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{name} failed:\n{ran.stderr[-4000:]}")
    (found,) = (site.folder / "logs" / name / "profile").rglob("*.xplane.pb")
    return found


def kind_of(one: Ran) -> str:
    return next(kind for kind, name in KINDS.items() if re.search(name, f"{one.kernel} {one.operation}"))


def tell(kernels: list[Ran], longest: int) -> None:
    kinds: dict[str, float] = defaultdict(float)
    operations: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one in kernels:
        kinds[kind_of(one)] += one.milliseconds / STEPS
        operation = re.sub(r"[._]\d+", "", one.operation)
        operations[one.kernel[:60], operation, _short(one.source)].append(one.milliseconds)
    gaps = list(idle(kernels))
    kinds["idle"] = sum(gap for gap, _ in gaps) / STEPS
    for kind, spent in sorted(kinds.items(), key=lambda one: -one[1]):
        print(f"{spent:9.2f} ms  {kind}")
    for (kernel, operation, source), spent in sorted(operations.items(), key=lambda one: -sum(one[1]))[:longest]:
        mean = sum(spent) / len(spent)
        print(f"{sum(spent) / STEPS:9.3f} ms  {len(spent) / STEPS:6.1f} x {mean:7.3f}  {kernel}  {operation}  {source}")
    short = [gap for gap, _ in gaps if gap < SHORT]
    print(f"{sum(short) / STEPS:9.3f} ms  {len(short) / STEPS:6.1f} gaps of less than {SHORT} ms; longer ones:")
    for gap, place in sorted(gaps, reverse=True)[:12]:
        print(f"{gap:9.3f} ms  {place}")
    print(json.dumps({kind: round(spent, 2) for kind, spent in kinds.items()}))


def idle(kernels: list[Ran]) -> Iterator[tuple[float, str]]:
    """When nothing ran, and between which kernels."""
    ordered = sorted(kernels, key=lambda one: one.start)
    ended, before = ordered[0].start, ordered[0]
    for one in ordered:
        if one.start > ended:
            yield one.start - ended, f"{before.kernel[:60]} … {one.kernel[:60]}"
        if one.start + one.milliseconds > ended:
            ended, before = one.start + one.milliseconds, one


def _short(source: str) -> str:
    """The end of a path through JAX's program, and whether it is of the backward pass."""
    return ("backward " if "transpose(" in source else "") + "/".join(source.split("/")[-3:])[:80]


if __name__ == "__main__":
    main()
