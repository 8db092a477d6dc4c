"""How near kernels of mixtures come to the speed of the GPU's memory, with rows read and fetched ahead in several ways.

Run:  python benchmarks/h200/mixing.py [--settings 4:16 2:8 …] [--numbers 8 16] [--states 10 23] [--rows 32768] [--help]
In:   random numbers. A setting, of gradients, is how many arrays are read ahead, and how many behind them are on their
      way to the cache; `numbers`, of sums, are those of a row that a thread has.
Out:  for each kernel and setting, milliseconds on the device, and how much of the speed of a sum of two arrays by XLA
      it moves its bytes with. `sums` are of a forward pass; `alone`, `owing` and `taking` make gradients: of one
      mixture, of one that leaves them to the one before it, and of that one; `owing 2` is of the last of three, the
      first of which is `taking 2`.
Cost: needs a GPU; at defaults, about a minute and a half of one H200, most of it compilation.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # on a lent machine nothing is installed

import jax
import jax.numpy as jnp
from traced import traced

from ponente.ops import mixing_gradients_kernel, mixing_kernel
from ponente.ops.mixing import ALONE, Debt, Mixed, Mixture, RowNorm, Way, together

WAYS = (*[Way(has_base=True, is_normed=True)] * 3, Way(is_normed=True, is_behind=True))  # of 20 layers and more
TWO, THREE = (together([len(WAYS)] * count, ends=False) for count in (2, 3))
KINDS = {"sums": None, "alone": ALONE, "owing": TWO[1], "owing 2": THREE[2], "taking": TWO[0], "taking 2": THREE[0]}
RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", type=_setting, default=[(4, 0), (4, 8), (4, 16), (2, 8)])
    parser.add_argument("--numbers", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--states", nargs="+", type=int, default=[10, 23])
    parser.add_argument("--rows", type=int, default=32_768)
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()
    row = jax.ShapeDtypeStruct((1, options.rows, options.width), jnp.bfloat16)
    a, b = filled((row, row))
    (sums_of_two,) = traced(repeated(jax.jit(jnp.add), (a, b))).values()
    speed = 3 * a.nbytes / 1e9 / min(sums_of_two)
    print(f"  sum of two arrays: {speed:.2f} TB/s", flush=True)
    lowered = {}
    for kind in options.kinds:
        for setting in options.settings if KINDS[kind] else options.numbers:
            told = apply(setting)
            for states in options.states:
                call, shapes = program(kind, states, row)
                lowered[kind, states, told] = call.lower(*shapes), shapes  # with this setting
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda one: one[0].compile(), lowered.values())
    for ((kind, states, told), (_, shapes)), run in zip(lowered.items(), compiled, strict=True):
        given = filled(shapes)
        (ours,) = (each for name, each in traced(repeated(run, given)).items() if "mixed" in name)
        milliseconds = min(ours)
        moved = arrays_moved(kind, states) * a.nbytes / 1e9 / milliseconds
        print(
            f"  {kind:<8}{states:>3} states, {told}: {milliseconds:7.3f} ms, {moved:.2f} TB/s ({moved / speed:.3f})",
            flush=True,
        )


def apply(setting: tuple[int, int] | int) -> str:
    """Lets kernels that are made from now on have a setting; returns it in words."""
    if isinstance(setting, int):
        mixing_kernel._NUMBERS = setting
        return f"{setting:>2} numbers"
    ahead, fetched = setting
    mixing_gradients_kernel._AHEAD = mixing_gradients_kernel._FEW_AHEAD = ahead
    mixing_gradients_kernel._FETCHED = mixing_gradients_kernel._FEW_FETCHED = fetched
    return f"{ahead} ahead, {fetched:>2} fetched"


def program(kind: str, states: int, row: Any) -> tuple[Any, Any]:
    """A kernel's call, which is made when it is lowered, and what it takes."""
    rows, width = row.shape[1:]
    weights = jax.ShapeDtypeStruct((1, rows, len(WAYS), states), jnp.float32)
    after = jax.ShapeDtypeStruct((width,), jnp.bfloat16)
    mixture = Mixture(weights, (row,) * states, row, after)
    turn = KINDS[kind]
    if turn is None:
        mixture = mixture._replace(norm=RowNorm(jax.ShapeDtypeStruct((1, rows, 1), jnp.float32), after))
        return jax.jit(lambda mixture: mixing_kernel.mixed(mixture, WAYS, 1e-6, keeps_units=True)), (mixture,)
    debts = tuple(
        Debt(jax.ShapeDtypeStruct((1, rows, ways, states + later), jnp.float32), (row,) * ways)
        for later, ways in enumerate(turn.owed, start=1)
    )
    scales = jax.ShapeDtypeStruct((rows, len(WAYS)), jnp.float32)
    given = (row,) * states, mixture._replace(base_BSD=None), (row,) * len(WAYS), scales, (row,) * len(WAYS), debts

    def gradients(by_states: Any, mixture: Mixture, units: Any, scales: Any, by_streams: Any, debts: Any) -> Any:
        made, left = mixing_gradients_kernel.mixed_gradients(
            mixture, units, scales, Mixed(by_streams, by_states, debts), WAYS, turn
        )
        return made.states, (made.weights_BSCM, made.base_BSD, left)

    return jax.jit(gradients), given


def arrays_moved(kind: str, states: int) -> int:
    """How many arrays of states' size a kernel reads and writes at least."""
    ways = len(WAYS)
    if kind == "sums":
        return states + 1 + ways + 1
    turn = KINDS[kind]
    left = ways * turn.owes + sum(turn.owed)
    return 2 * ways + states + 2 * (turn.own or states) + 1 + left


def filled(tree: Any) -> Any:
    """Arrays of such shapes, with numbers near 0."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    make = jax.jit(lambda key, like: (0.1 * jax.random.normal(key, like.shape)).astype(like.dtype), static_argnums=1)
    return jax.tree.unflatten(structure, [make(key, like) for key, like in zip(keys, leaves, strict=True)])


def repeated(run: Callable[..., Any], given: Any) -> Callable[[], Any]:
    jax.block_until_ready(run(*given))
    return lambda: [jax.block_until_ready(run(*given)) for _ in range(RUNS)][-1]


def _setting(text: str) -> tuple[int, int]:
    ahead, _, fetched = text.partition(":")
    if not (ahead.isdigit() and fetched.isdigit()):
        raise argparse.ArgumentTypeError(f"found {text}; needed AHEAD:FETCHED, such as 4:16")
    return int(ahead), int(fetched)


if __name__ == "__main__":
    main()
