"""The gradients of silu(gate) · up in one pass, by a Triton kernel: three arrays are read, two or three are written.

The two lie side by side in one array, as the product that makes the gradient of their common input wants them.
"""

import math
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.gated import swiglu_again_plain, swiglu_gradients_plain
from ponente.ops.gpu import MOST_NUMBERS

_BLOCK, _WARPS = 4096, 4  # the fastest of six on an H200, by 1%


def swiglu_gradients(gate: Array, up: Array, by_hidden: Array, *, is_interpreted: bool = False) -> tuple[Array, Array]:
    """The gradients by gate and by up."""
    if _blocks(gate) is None:
        return swiglu_gradients_plain(gate, up, by_hidden)

    def kernel(gate: Any, up: Any, by_hidden: Any, both: Any) -> None:
        both[:, 0, :], both[:, 1, :] = swiglu_gradients_plain(gate[...], up[...], by_hidden[...])

    (both,) = _call(kernel, (gate, up, by_hidden), (2,), "swiglu_gradients", is_interpreted=is_interpreted)
    return _apart(both, gate)


def swiglu_again(
    gate: Array, up: Array, by_hidden: Array, *, is_interpreted: bool = False
) -> tuple[Array, Array, Array]:
    """silu(gate) · up itself, and the gradients by gate and by up."""
    if _blocks(gate) is None:
        return swiglu_again_plain(gate, up, by_hidden)

    def kernel(gate: Any, up: Any, by_hidden: Any, hidden: Any, both: Any) -> None:
        made = swiglu_again_plain(gate[...], up[...], by_hidden[...])
        hidden[:, 0, :], both[:, 0, :], both[:, 1, :] = made

    hidden, both = _call(kernel, (gate, up, by_hidden), (1, 2), "swiglu_again", is_interpreted=is_interpreted)
    return hidden.reshape(gate.shape), *_apart(both, gate)


def _blocks(gate: Array) -> tuple[int, int] | None:
    """Rows and columns of a program; None for odd sizes and huge ones, which are not for the kernel."""
    width = gate.shape[-1]
    columns = math.gcd(width, _BLOCK)
    height = math.gcd(gate.size // width, _BLOCK // columns)
    is_fit = height * columns >= _BLOCK // 8 and 2 * gate.size <= MOST_NUMBERS
    return (height, columns) if is_fit else None


def _call(
    kernel: Any, given: tuple[Array, ...], wanted: tuple[int, ...], name: str, *, is_interpreted: bool
) -> list[Array]:
    """What a kernel makes: for each number that is wanted, so many arrays side by side."""
    width = given[0].shape[-1]
    rows, blocks = given[0].size // width, _blocks(given[0])
    assert blocks is not None
    height, columns = blocks
    made: list[Array] = pl.pallas_call(
        kernel,
        grid=(rows // height, width // columns),
        in_specs=[pl.BlockSpec(blocks, lambda row, column: (row, column))] * len(given),
        out_specs=[pl.BlockSpec((height, count, columns), lambda row, column: (row, 0, column)) for count in wanted],
        out_shape=[jax.ShapeDtypeStruct((rows, count, width), given[0].dtype) for count in wanted],
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=is_interpreted,
        name=name,
    )(*(array.reshape(rows, width) for array in given))
    return made


def _apart(both: Array, gate: Array) -> tuple[Array, Array]:
    width = gate.shape[-1]
    side_by_side = both.reshape(*gate.shape[:-1], 2 * width)
    return side_by_side[..., :width], side_by_side[..., width:]
