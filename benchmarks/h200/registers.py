"""Registers that kernels of mixtures take, compiled for an H200 where there is none: with too many, fewer programs run.

Run:  python benchmarks/h200/registers.py [--kinds sums "taking 2" …] [--states 10 23] [--width 2048] [--help]
In:   shapes alone. Needs JAX's plugin for CUDA, of JAX's version (`pip install jax-cuda13-plugin nvidia-cuda-nvcc`).
Out:  for each kernel of mixing.py, a thread's registers and bytes that did not fit into them, by ptxas, and how many
      programs fit into a multiprocessor. Another ptxas may tell others.
Cost: some seconds a kernel, on a CPU.
"""

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import compiled  # before JAX is asked for devices, for it says which
import jax
import jax.numpy as jnp
from jax._src import lib
from mixing import KINDS, program

REGISTERS, MOST_THREADS = 65_536, 2_048  # of a multiprocessor
_EACH = 8  # registers are handed out by so many
_KEEPER = """#!/bin/sh
for one in "$@"; do
    case $one in -*) ;; *) grep -qs "entry mixed" "$one" && cp "$one" {kept} ;; esac
done
exec {ptxas} "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--states", nargs="+", type=int, default=[10, 23])
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()
    ptxas = found_ptxas()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kernel.ptx"
        keep_assembly(Path(folder), ptxas, kept)
        place = compiled.pretend()
        row = jax.ShapeDtypeStruct((1, 1024, options.width), jnp.bfloat16)
        for kind in options.kinds:
            for states in options.states:
                call, shapes = program(kind, states, row)
                call.lower(*compiled.placed(shapes, place)).compile()
                print(f"  {kind:<9}{states:>3} states: {told(ptxas, kept)}", flush=True)
                kept.unlink()


def found_ptxas() -> str:
    """The one of the package beside JAX, or that of the PATH."""
    beside = [str(one) for folder in sys.path for one in Path(folder).glob("nvidia/*/bin/ptxas")]
    found = beside[0] if beside else shutil.which("ptxas")
    if found is None:
        raise SystemExit("found no ptxas; needed NVIDIA's assembler: pip install nvidia-cuda-nvcc")
    return found


def keep_assembly(folder: Path, ptxas: str, kept: Path) -> None:
    """Lets XLA call an assembler that keeps the kernel it is given."""
    keeper = folder / "bin" / "ptxas"
    keeper.parent.mkdir()
    keeper.write_text(_KEEPER.format(kept=kept, ptxas=ptxas))
    keeper.chmod(keeper.stat().st_mode | stat.S_IXUSR)
    lib.cuda_path = str(folder)  # where JAX says that it is


def told(ptxas: str, kernel: Path) -> str:
    """What it is assembled to, in words."""
    command = [ptxas, "-arch=sm_90a", "-v", "-o", os.devnull, str(kernel)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, spilled = (int(re.findall(pattern, said)[0]) for pattern in (r"Used (\d+) reg", r"(\d+) bytes spill st"))
    threads = int(re.findall(r"\.reqntid (\d+)", kernel.read_text())[0])
    programs = min(REGISTERS // (-(-registers // _EACH) * _EACH * threads), MOST_THREADS // threads)
    return f"{registers:>3} registers, {spilled} bytes beside them; {programs} programs of {threads} threads"


if __name__ == "__main__":
    main()
