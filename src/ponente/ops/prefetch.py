"""Rows that a Triton kernel will read soon, brought from the GPU's memory to its cache without waiting for them.

A read takes registers from when it begins until it ends, and a kernel that holds much has few left: it cannot keep as
much on its way as the memory could bring. Hopper's copy engine brings a row for one instruction, and no register.
Pallas has no name for it in kernels of Triton, so this module alone binds it, by names of JAX that are private; where
they are not as they were, nothing is fetched ahead, which costs time and changes no number. The log says so once.
"""

import importlib
import logging
import math
from functools import cache
from typing import Any

from jax.extend.core import Primitive

from ponente.ops.gpu import capability

_HOPPER = 9.0
_STEP = 16  # bytes: the copy engine knows no smaller pieces
_LOWERING = "jax._src.pallas.triton.lowering"
_PRIMITIVES = "jax._src.pallas.triton.primitives"
_ASM = """{{
    .reg .pred first;
    .reg .b32 thread;
    mov.u32 thread, %tid.x;
    setp.eq.u32 first, thread, 0;
    @first cp.async.bulk.prefetch.L2.global [$1], {size};
    mov.b32 $0, 0;
}}"""

logger = logging.getLogger(__name__)


def fetch_row(array: Any, row: Any) -> None:
    """Begins to bring one row of a whole array [rows, …] to the cache, where the GPU can."""
    is_whole = _row_bytes(array) % _STEP == 0
    if capability() >= _HOPPER and is_whole and (primitive := _primitive()) is not None:
        primitive.bind(array, row)


def _row_bytes(array: Any) -> int:
    return int(math.prod(array.shape[1:]) * array.dtype.itemsize)


@cache
def _primitive() -> Primitive | None:
    try:
        lowering, primitives = importlib.import_module(_LOWERING), importlib.import_module(_PRIMITIVES)
        kept = {primitives.barrier_effect}  # what has no effect is left out of a kernel
        _used(lowering)
        made = Primitive("fetch_row")
        made.multiple_results = True
        made.def_effectful_abstract_eval(lambda array, row: ((), kept))
        lowering.register_lowering(made)(_lower)
    except (ImportError, AttributeError) as error:
        logger.warning("kernels fetch nothing ahead: JAX's lowering of Triton is not as it was (%s)", error)
        return None
    return made


def _used(lowering: Any) -> tuple[Any, ...]:
    """What a fetch is lowered to."""
    triton, arith = lowering.tt_dialect, lowering.arith_dialect
    return triton.ptr_to_int, triton.elementwise_inline_asm, arith.constant, arith.extui, arith.muli, arith.addi


def _lower(context: Any, pointer: Any, row: Any) -> list[Any]:
    lowering = importlib.import_module(_LOWERING)
    as_integer, inline_asm, constant, extended, times, plus = _used(lowering)
    size, integer = _row_bytes(context.avals_in[0]), lowering.ir.IntegerType.get_signless
    place = plus(as_integer(integer(64), pointer), times(extended(integer(64), row), constant(integer(64), size)))
    asm, constraints = _ASM.format(size=size), "=r,l"
    inline_asm([integer(32)], asm, constraints=constraints, pure=False, packed_element=1, args=[place])
    return []
