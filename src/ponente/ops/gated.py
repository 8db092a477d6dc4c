"""The gate of an MLP: an activation of one product times another, with a gradient that reads each array once.

XLA computes the gradients by gate and by up in a kernel each, which both read all three arrays; on a GPU one kernel
writes both. The product behind the gate may also be made here, which then keeps less for its gradient.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ponente.ops.fp8 import Fp8Weight
from ponente.ops.gpu import has_triton
from ponente.ops.kept import PRODUCT
from ponente.ops.linear import input_gradient, linear, weight_gradient

Activation = Callable[[Array], Array]


def gated(gate: Array, up: Array, activation: Activation) -> Array:
    """activation(gate) · up."""
    return _swiglu(gate, up) if activation is jax.nn.silu and has_triton() else activation(gate) * up


def linear_of_gated(gate: Array, up: Array, activation: Activation, weight: Array | Fp8Weight) -> Array:
    """`linear` of what is gated, which keeps only gate and up: the backward pass reads these, and gates again."""
    if isinstance(weight, Fp8Weight):  # whose gradients are made of what it kept in 8 bits
        return linear(gated(gate, up, activation), weight)
    named: Array = checkpoint_name(_linear_of_gated(gate, up, weight, activation), PRODUCT)
    return named


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _linear_of_gated(gate: Array, up: Array, weight: Array, activation: Activation) -> Array:
    return linear(gated(gate, up, activation), weight)


def _again_forward(
    gate: Array, up: Array, weight: Array, activation: Activation
) -> tuple[Array, tuple[Array, Array, Array]]:
    return _linear_of_gated(gate, up, weight, activation), (gate, up, weight)


def _again_backward(
    activation: Activation, kept: tuple[Array, Array, Array], by_product: Array
) -> tuple[Array, Array, Array]:
    gate, up, weight = kept
    by_hidden = input_gradient(weight, by_product)
    if activation is jax.nn.silu and has_triton():
        from ponente.ops.gated_kernel import swiglu_again

        hidden, by_gate, by_up = swiglu_again(gate, up, by_hidden)
    else:
        both = jax.lax.optimization_barrier((gate, up))  # or XLA would find what the forward pass made, and keep it
        hidden, pull = jax.vjp(lambda gate, up: activation(gate) * up, *both)
        by_gate, by_up = pull(by_hidden)
    return by_gate, by_up, weight_gradient(hidden, weight, by_product)


_linear_of_gated.defvjp(_again_forward, _again_backward)


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
    return swiglu_again_plain(gate, up, by_hidden)[1:]


def swiglu_again_plain(gate: Array, up: Array, by_hidden: Array) -> tuple[Array, Array, Array]:
    """silu(gate) · up itself, and the same gradients."""
    gate_f, up_f, by = (array.astype(jnp.float32) for array in (gate, up, by_hidden))
    share = jax.nn.sigmoid(gate_f)
    active = gate_f * share
    by_gate = by * up_f * (share + active * (1 - share))
    return (active * up_f).astype(gate.dtype), by_gate.astype(gate.dtype), (by * active).astype(up.dtype)
