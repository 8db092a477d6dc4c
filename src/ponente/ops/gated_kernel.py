"""The gradients of silu(gate) · up in one pass, by a Triton kernel: three arrays are read, two are written.

The two lie side by side in one array, as the product that makes the gradient of their common input wants them.
"""

import math

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ponente.ops.gated import swiglu_gradients_plain
from ponente.ops.gpu import MOST_NUMBERS

_BLOCK, _WARPS = 4096, 4  # the fastest of six on an H200, by 1%


def swiglu_gradients(gate: Array, up: Array, by_hidden: Array, *, is_interpreted: bool = False) -> tuple[Array, Array]:
    """The gradients by gate and by up."""
    width = gate.shape[-1]
    rows, columns = gate.size // width, math.gcd(width, _BLOCK)
    height = math.gcd(rows, _BLOCK // columns)
    if height * columns < _BLOCK // 8 or 2 * gate.size > MOST_NUMBERS:  # odd sizes, huge ones: no kernel
        return swiglu_gradients_plain(gate, up, by_hidden)
    part = pl.BlockSpec((height, columns), lambda row, column: (row, column))
    both = pl.pallas_call(
        _kernel,
        grid=(rows // height, width // columns),
        in_specs=[part] * 3,
        out_specs=pl.BlockSpec((height, 2, columns), lambda row, column: (row, 0, column)),
        out_shape=jax.ShapeDtypeStruct((rows, 2, width), gate.dtype),
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=is_interpreted,
        name="swiglu_gradients",
    )(*(array.reshape(rows, width) for array in (gate, up, by_hidden)))
    side_by_side = both.reshape(*gate.shape[:-1], 2 * width)
    return side_by_side[..., :width], side_by_side[..., width:]


def _kernel(gate, up, by_hidden, both) -> None:  # type: ignore[no-untyped-def]
    both[:, 0, :], both[:, 1, :] = swiglu_gradients_plain(gate[...], up[...], by_hidden[...])
