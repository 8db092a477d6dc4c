"""Calls of Triton kernels that are given whole arrays and find their parts themselves."""

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton


def call_kernel(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    given: Any,
    wanted: Any,
    *,
    warps: int,
    name: str,
    is_interpreted: bool,
    in_place: dict[int, int] | None = None,
    stages: int | None = None,
) -> Any:
    """What `kernel(given, *made)` makes, by as many programs as the grid has.

    Args:
        in_place: which of the arrays that are given lie where which of those that are made are to lie.
        stages: how many turns of a loop around a product are being read at once.
    """
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[jax.tree.map(lambda _: pl.BlockSpec(), given)],
        out_specs=jax.tree.map(lambda _: pl.BlockSpec(), wanted),
        out_shape=wanted,
        input_output_aliases=in_place or {},
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=is_interpreted,
        name=name,
    )(given)
