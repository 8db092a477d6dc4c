"""The gate of an MLP: an activation of one product times another, with a gradient that reads each array once.

XLA computes the gradients by gate and by up in a kernel each, which both read all three arrays; on a GPU one kernel
writes both.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gpu import has_triton

Activation = Callable[[Array], Array]


def gated(gate: Array, up: Array, activation: Activation) -> Array:
    """activation(gate) · up."""
    return _swiglu(gate, up) if activation is jax.nn.silu and has_triton() else activation(gate) * up


@jax.custom_vjp
def _swiglu(gate: Array, up: Array) -> Array:
    return jax.nn.silu(gate) * up


def _forward(gate: Array, up: Array) -> tuple[Array, tuple[Array, Array]]:
    return _swiglu(gate, up), (gate, up)


def _backward(kept: tuple[Array, Array], by_hidden: Array) -> tuple[Array, Array]:
    from ponente.ops.gated_kernel import swiglu_gradients

    return swiglu_gradients(*kept, by_hidden)


_swiglu.defvjp(_forward, _backward)


def swiglu_gradients_plain(gate: Array, up: Array, by_hidden: Array) -> tuple[Array, Array]:
    """The gradients by gate and by up of silu(gate) · up, in float32 until the end; kernels compute the same."""
    gate_f, up_f, by = (array.astype(jnp.float32) for array in (gate, up, by_hidden))
    share = jax.nn.sigmoid(gate_f)
    active = gate_f * share
    return (by * up_f * (share + active * (1 - share))).astype(gate.dtype), (by * active).astype(up.dtype)
